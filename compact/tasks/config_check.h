// SPDX-License-Identifier: Apache-2.0
// Checks of a configuration before anything is opened.
#pragma once

#include "compact/config/config.h"

namespace compact {

// Checks values that need nothing but the configuration; throws InputError naming option, rule and
// value.
void check_config(const TrainConfig& config);
// Checks that --preset auto has a --budget to choose under.
void check_budget(const TrainConfig& config);
// Both checks above, and that a run's data and folder are named.
void check_run(const TrainConfig& config);

// Throws InputError on settings that do not fit the number of ranks.
void check_ranks(const TrainConfig& config, int64_t ranks);

}  // namespace compact
