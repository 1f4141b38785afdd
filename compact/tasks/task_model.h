// SPDX-License-Identifier: Apache-2.0
// The model of a task, whatever its family.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compact/data/tokenizers/tokenizer.h"
#include "compact/models/model_config.h"
#include "compact/tasks/task.h"

namespace compact {

// What --model, or the folder --model_name_or_path, says. Throws InputError where it is for another
// task, and as its family does.
std::unique_ptr<ModelConfig> model_of(const TrainConfig& config);

// Sets what a task takes of its model: config.json and how to make its network.
void set_model(const TrainConfig& config, const ModelConfig& model, Task& task);

// After that, keeps the tokenizer beside the model. Throws InputError where transformers would read
// it otherwise there and a run begins; one that goes on gets a line in `warnings`.
void set_tokenizer(const TrainConfig& config, const Opening& opening, const Tokenizer& tokenizer,
                   Task& task, std::vector<std::string>& warnings);

// Throws InputError where an option asks for longer sequences than the model has places for.
void check_length(const char* option, int64_t tokens, const ModelShape& shape);

}  // namespace compact
