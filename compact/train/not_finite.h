// SPDX-License-Identifier: Apache-2.0
// What can be said of a run that ends since a loss or gradient was not finite.
#pragma once

#include <string>

#include "compact/config/config.h"
#include "compact/optim/optimizer.h"

namespace compact {

// What the weights are then, as far as this process has them, and which settings help.
std::string about_not_finite(const TrainConfig& config, int64_t ranks, const Optimizer& optimizer);

}  // namespace compact
