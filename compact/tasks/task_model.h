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

// The configuration of --model or of the folder --model_name_or_path. Throws InputError where it is
// for another task, and as its family does.
std::unique_ptr<ModelConfig> model_of(const TrainConfig& config);

// Sets config.json and the makers of networks in `task`.
void set_model(const TrainConfig& config, const ModelConfig& model, Task& task);

// To be called after set_model(): adds the tokenizer's files. Where transformers would read these
// otherwise beside the model, throws InputError; a resumed run gets a line in `warnings`.
void set_tokenizer(const TrainConfig& config, const Opening& opening, const Tokenizer& tokenizer,
                   Task& task, std::vector<std::string>& warnings);

// Throws InputError where an option asks for longer sequences than the model can read.
void check_length(const char* option, int64_t tokens, const ModelShape& shape);

}  // namespace compact
