// SPDX-License-Identifier: Apache-2.0
// Everything a run needs to go on bit for bit, and its checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "compact/config/config.h"
#include "compact/io/checkpoint.h"
#include "compact/networks/network.h"
#include "compact/optim/optimizer.h"
#include "compact/tasks/task.h"
#include "compact/train/run_state_json.h"

namespace compact {

// Saves output_dir/checkpoint-<step>. Returns its path. Where several ranks have the optimizer's
// state, `other_parts` has the other ranks' parts written (CheckpointContent).
std::string save_run(const TrainConfig& config, const RunState& state, const Network& model,
                     const Optimizer& optimizer, const Policy& policy, const Task& task,
                     const OtherParts& other_parts = {});

// The checkpoint folder that --resume_from_checkpoint names. Lines on invalid ones passed over go
// to `warnings`. Throws InputError where there is none.
std::string find_checkpoint(const TrainConfig& config, std::vector<std::string>& warnings);

// The state of a run, which must be known before the model is made.
RunState read_run_state(const std::string& checkpoint);

// "2 threads, AVX512" or "CUDA": with others, sums end in other bits.
std::string machine_of(at::Device device);
// Sets the machine of `state` to this one; returns a line where it was another.
std::string take_over_machine(RunState& state, at::Device device);

// Throws InputError where the run of the checkpoint had other settings that change its numbers,
// naming the first; lines on harmless ones go to `warnings`. A policy in other words that does the
// same to this network is the same.
void check_same_run(const std::string& checkpoint, const TrainConfig& config, int64_t ranks,
                    const Policy& policy, const Task& task, std::vector<std::string>& warnings);

// The policy that the run was trained with, where the configuration says `auto` or has the same
// options for it as that run and no policy file: a preset may have other lines in another version
// of this program. Else the policy that the configuration says.
Policy resumed_policy(const std::string& checkpoint, const TrainConfig& config,
                      std::vector<std::string>& warnings);

// An XXH3 of a tensor's bytes.
std::string digest_of(const at::Tensor& tensor);
// Throws InputError where adapters would go on with other base weights than those of `state`, and
// notes in `state` which they are.
void take_over_base(RunState& state, const Network& model, const std::string& checkpoint);
// The same of the reference of preferences.
void take_over_reference(RunState& state, const Network& reference, const std::string& checkpoint);

// Loads weights and optimizer.
void load_run(const std::string& checkpoint, Network& model, Optimizer& optimizer);

}  // namespace compact
