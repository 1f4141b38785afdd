// SPDX-License-Identifier: Apache-2.0
// The model of tasks on language models.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "compact/data/tokenizers/tokenizer.h"
#include "compact/models/model_config.h"
#include "compact/tasks/task.h"

namespace compact {

// The tokens before a prompt: those that the tokenizer's own files put before a sentence, or, where
// they do not say, the model's begin of text.
std::vector<uint32_t> begin_of_prompt(const Tokenizer& tokenizer, const TokenIds& known);

// Sets the task's model, config.json, sizes of micro-batches and tokenizer files (null: no
// tokenizer), and returns the model's shape. Throws InputError where model, tokenizer and
// --block_size do not fit together.
ModelShape set_language_model(const TrainConfig& config, const Opening& opening,
                              const Tokenizer* tokenizer, Task& task,
                              std::vector<std::string>& warnings);

// Micro-batches of sequences of so many tokens. `ranges`, where given: of a batch of so many rows
// of that length.
using MakeRanges =
    std::function<std::vector<std::array<int64_t, 3>>(int64_t batch, int64_t length)>;
Task::MakeInputs ids_of(std::function<int64_t(const TrainConfig&)> length, MakeRanges ranges = {});

}  // namespace compact
