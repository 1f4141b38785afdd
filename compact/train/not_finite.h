// SPDX-License-Identifier: Apache-2.0
// The explanation of a run that ends because a loss or gradient was not finite.
#pragma once

#include <string>

#include "compact/config/config.h"
#include "compact/optim/optimizer.h"

namespace compact {

// The state of the weights then, as far as this process has them, and the settings that help.
std::string about_not_finite(const TrainConfig& config, int64_t ranks, const Optimizer& optimizer);

}  // namespace compact
