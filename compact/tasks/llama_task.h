// SPDX-License-Identifier: Apache-2.0
// What tasks of language models share: the model.
#pragma once

#include "compact/data/tokenizers/tokenizer.h"
#include "compact/tasks/task.h"

namespace compact {

// Sets model, config.json, sizes of micro-batches and the tokenizer's files (null: there is none).
// Throws InputError where model, tokenizer and --block_size do not go together.
void set_llama(const TrainConfig& config, const Tokenizer* tokenizer, Task& task);

}  // namespace compact
