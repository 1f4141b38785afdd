// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "compact/train/config.h"

namespace compact {

// A line for each option that was given and that the configuration's task does not read.
std::vector<std::string> ignored_options(const TrainConfig& config);

}  // namespace compact
