// SPDX-License-Identifier: Apache-2.0
// What tasks of language models share: the model.
#pragma once

#include <vector>

#include "compact/data/tokenizers/tokenizer.h"
#include "compact/models/model_config.h"
#include "compact/tasks/task.h"

namespace compact {

// What a prompt begins with: what the tokenizer's own files put before a sentence, or, where they
// do not say, the model's begin of text.
std::vector<uint32_t> begin_of_prompt(const Tokenizer& tokenizer, const TokenIds& known);

// Sets model, config.json, sizes of micro-batches and the tokenizer's files (null: there is none),
// and returns what the model is then. Throws InputError where model, tokenizer and --block_size do
// not go together.
ModelShape set_language_model(const TrainConfig& config, const Opening& opening,
                              const Tokenizer* tokenizer, Task& task,
                              std::vector<std::string>& warnings);

// Sequences of so many tokens.
Task::MakeInputs ids_of(std::function<int64_t(const TrainConfig&)> length);

}  // namespace compact
