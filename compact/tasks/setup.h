// SPDX-License-Identifier: Apache-2.0
// Makes the parts of a run from its configuration.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "compact/config/config.h"
#include "compact/data/tokenizers/tokenizer.h"
#include "compact/networks/network.h"
#include "compact/ops/policy/policy.h"
#include "compact/optim/optimizer.h"

namespace compact {

// Whether training can use a GPU.
struct Accelerator {
  bool gpu = false;      // torch sees one
  bool kernels = false;  // this build has our kernels for it
};
Accelerator accelerator();

// cpu or cuda. `auto` takes the GPU where there is one and this build has kernels for it; if only
// the kernels are missing, it takes the CPU and adds a line to `warnings`. `cuda` without either
// throws InputError.
at::Device device_of(const std::string& name, const Accelerator& there,
                     std::vector<std::string>& warnings);
at::Device device_of(const std::string& name, std::vector<std::string>& warnings);
// The same for a plan, which needs no GPU.
c10::DeviceType planned_device_of(const std::string& name, std::vector<std::string>& warnings);
at::ScalarType dtype_of(const std::string& name);

// The policy of preset, policy file, --rank and the like, and --set, in this order. Options without
// effect add lines to `warnings`. Not for --preset auto, which needs the model: see plans.h.
Policy make_policy(const TrainConfig& config, std::vector<std::string>& warnings);
// A line in `warnings` for each --bits_* option that is given though the policy leaves no bits
// open.
void say_unused_bits(const TrainConfig& config, const Policy& policy,
                     std::vector<std::string>& warnings);

// Samples of an update.
int64_t samples_of_step(const TrainConfig& config, int64_t ranks);
// Updates of the whole run: --max_steps, or those of --num_train_epochs over so many samples.
int64_t total_steps(const TrainConfig& config, int64_t ranks, int64_t samples);
// Updates between evaluations: --eval_epochs over so many samples, else --eval_steps; 0: none.
int64_t evaluation_interval(const TrainConfig& config, int64_t ranks, int64_t samples);

// --tokenizer; else that of a prepared folder of data; else that of --model_name_or_path; else, for
// new weights, bytes. Null without
// --tokenizer and without `data` to read: the vocabulary is then the model's own. Throws InputError
// where a folder with weights has no tokenizer.
std::unique_ptr<Tokenizer> tokenizer_of(const TrainConfig& config, bool data);
// Whether it is that of --model_name_or_path, so that token ids in the folder's files are valid.
bool reads_with_own_tokenizer(const TrainConfig& config);

// The uses of the seed; no two share random bits.
enum class RandomUse : uint64_t { kWeights = 1, kData, kOptimizer, kNoise };
uint64_t key_of(const TrainConfig& config, RandomUse use);

// The key of the random bits that codecs draw in one forward pass, so that a resumed run draws the
// same.
uint64_t noise_key(const TrainConfig& config, int64_t step, int64_t micro);

// The folder for files of weights and optimizer state that a policy has on a disk.
std::string offload_folder_of(const TrainConfig& config);

// `group`: the ranks that train it, or null.
OptimizerOptions optimizer_options(const TrainConfig& config, const Policy& policy,
                                   std::shared_ptr<Group> group);

}  // namespace compact
