// SPDX-License-Identifier: Apache-2.0
// Of several ranks, to which matrices are dealt, the one that a plan for all of them is of.
#pragma once

#include <cstdint>
#include <optional>

#include "compact/config/config.h"
#include "compact/train/planning.h"

namespace compact {

// The rank whose step takes the most, of the eight that are dealt the most.
int64_t heaviest_rank(const TrainConfig& config, const Task& task, const Policy& policy,
                      c10::DeviceType device);

// The policy that --preset auto chooses for all ranks under so many bytes, with the plan of the one
// that takes the most under it, which becomes the one that `config` plans; nullopt where none was
// found. And under --budget; throws BudgetError.
std::optional<Chosen> find_for_ranks(TrainConfig& config, const Task& task, c10::DeviceType device,
                                     const StatedSpeed& stated, int64_t budget);
Chosen choose_for_ranks(TrainConfig& config, const Task& task, c10::DeviceType device,
                        const StatedSpeed& stated = {});

}  // namespace compact
