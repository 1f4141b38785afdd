// SPDX-License-Identifier: Apache-2.0
// The reference of preferences: what the model that answers are compared with says of them,
// computed once, so that it takes no memory in training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compact/networks/network.h"
#include "compact/parallel/group.h"
#include "compact/tasks/task.h"

namespace compact {

// The model in the folder that --reference names; null where it names none.
std::unique_ptr<Network> reference_model(const TrainConfig& config, const Task& task,
                                         at::Device device, std::vector<std::string>& warnings);
// The same for the evaluation of a run's folder, whose `start` is what its adapters stand beside,
// or the folder that train_config.json names. Throws InputError where that is not to be had.
std::unique_ptr<Network> reference_of_run(const TrainConfig& config, const Task& task,
                                          at::Device device, std::vector<std::string>& warnings);

// Sets the log probabilities of the task's pairs under `model`: of the first `trained` in the order
// of training, of all that are evaluated. Ranks of a group share the work; its bits do not depend
// on their number. Returns how many pairs were scored.
int64_t set_references(const TrainConfig& config, Task& task, const Network& model, int64_t trained,
                       const Progress& progress, Group& group);

}  // namespace compact
