// SPDX-License-Identifier: Apache-2.0
// The rank that a plan is made for where matrices are dealt to several ranks.
#pragma once

#include <cstdint>
#include <optional>

#include "compact/config/config.h"
#include "compact/train/planning.h"

namespace compact {

// The rank whose step takes the most, of the eight that are dealt the most.
int64_t heaviest_rank(const TrainConfig& config, const Task& task, const Policy& policy,
                      c10::DeviceType device);

// The policy that --preset auto chooses for all ranks under so many bytes, with the plan of the
// rank that takes the most under it; `config` then plans that rank. nullopt where none was found.
// The second function takes --budget and throws BudgetError.
std::optional<Chosen> find_for_ranks(TrainConfig& config, const Task& task, c10::DeviceType device,
                                     const StatedSpeed& stated, int64_t budget);
Chosen choose_for_ranks(TrainConfig& config, const Task& task, c10::DeviceType device,
                        const StatedSpeed& stated = {});

}  // namespace compact
