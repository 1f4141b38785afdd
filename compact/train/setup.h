// SPDX-License-Identifier: Apache-2.0
// From a configuration to the things a run is made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "compact/data/dataset.h"
#include "compact/data/reader.h"
#include "compact/data/tokenizer.h"
#include "compact/models/llama.h"
#include "compact/ops/policy.h"
#include "compact/optim/optimizer.h"
#include "compact/train/config.h"

namespace compact {

// cpu or cuda; `auto` takes the GPU where there is one. Throws InputError where there is none.
at::Device device_of(const std::string& name);
at::ScalarType dtype_of(const std::string& name);

// Preset, then policy file, then --rank and its like, then --set. Options that take no effect add a
// line to `warnings`. Not for --preset auto, which needs the model: see planning.h.
Policy make_policy(const TrainConfig& config, std::vector<std::string>& warnings);

struct DataSources {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<BlockDataset> train, validation;  // validation may be null
  uint64_t checksum = 0;                            // of the training tokens
};
// Opens token files, preparing raw text into the cache first; `progress` hears of that.
DataSources open_data(const TrainConfig& config, const Progress& progress,
                      std::vector<std::string>& warnings);

// Updates of the whole run: --max_steps, or those of --num_train_epochs over `blocks` blocks.
int64_t total_steps(const TrainConfig& config, int64_t blocks);

// The model's shape: the table's or the folder's, with the tokenizer's vocabulary.
LlamaConfig model_config(const TrainConfig& config, const Tokenizer& tokenizer);

// The model, with weights of --model_name_or_path where it has them.
std::unique_ptr<Llama> make_model(const TrainConfig& config, const LlamaConfig& shape,
                                  const Policy& policy, at::Device device,
                                  std::vector<std::string>& warnings);

// Of the random bits of codecs in one forward pass, so that a resumed run draws the same.
uint64_t noise_key(const TrainConfig& config, int64_t step, int64_t micro);

OptimizerOptions optimizer_options(const TrainConfig& config, const Policy& policy);
std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, const Policy& policy,
                                          Llama& model);

// Copies weights by Hugging Face names into the model; throws InputError on a missing tensor.
void load_weights(Llama& model, const std::string& folder);

}  // namespace compact
