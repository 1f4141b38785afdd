// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/llama_task.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/io/hf_config.h"
#include "compact/models/llama.h"
#include "compact/models/models.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/tokenizer_store.h"

namespace compact {
namespace {

// The model's shape: the table's or the folder's, with the tokenizer's vocabulary.
LlamaConfig shape_of(const TrainConfig& c, const Tokenizer* tokenizer) {
  LlamaConfig shape;
  if (c.model.empty()) {
    shape = read_llama_config(c.model_name_or_path);
    COMPACT_CHECK(!tokenizer || tokenizer->vocabulary() <= shape.vocab_size, "--tokenizer ",
                  tokenizer->spec(), " has ", tokenizer->vocabulary(), " tokens, the model of ",
                  c.model_name_or_path, " only ", shape.vocab_size);
  } else {
    shape = model_named(c.model).config;
    if (tokenizer) {
      shape.vocab_size = tokenizer->vocabulary();
      shape.eos_token_ids = {static_cast<int64_t>(tokenizer->end_of_text())};
    }
    shape.max_position_embeddings = std::max(shape.max_position_embeddings, c.block_size);
  }
  const int64_t window = shape.sliding_window.value_or(c.block_size);
  COMPACT_CHECK(c.block_size <= window, "--block_size ", c.block_size,
                " is longer than the model's sliding_window ", window,
                ", up to which tokens attend to all before them");
  COMPACT_CHECK(c.block_size <= longest_sequence(shape), "--block_size ", c.block_size,
                " is longer than the model's max_position_embeddings ", longest_sequence(shape));
  shape.torch_dtype = c.dtype;
  return shape;
}

Task::MakeNetwork llama_of(const LlamaConfig& shape) {
  return [shape](const TrainConfig& c, const Policy& policy, at::Device device) {
    return std::make_unique<Llama>(shape, policy,
                                   ModelOptions{.device = device,
                                                .dtype = dtype_of(c.dtype),
                                                .max_length = c.block_size,
                                                .seed = key_of(c, RandomUse::kWeights)});
  };
}

// A block of each kind, in the order in which they come: one that turns queries and keys, one that
// does not.
LlamaConfig smallest_of(LlamaConfig shape) {
  std::vector<bool> kinds;
  for (const bool turns : shape.rope_layers) {
    if (std::ranges::find(kinds, turns) == kinds.end()) kinds.push_back(turns);
  }
  shape.num_hidden_layers = std::max<int64_t>(1, static_cast<int64_t>(kinds.size()));
  shape.rope_layers = kinds;
  shape.sliding_layers.clear();
  shape.vocab_size = 64;
  shape.bos_token_id.reset();
  shape.eos_token_ids.clear();
  shape.pad_token_id.reset();
  return shape;
}

}  // namespace

void set_llama(const TrainConfig& c, const Tokenizer* tokenizer, Task& task) {
  const LlamaConfig shape = shape_of(c, tokenizer);
  task.head_dim = shape.head_dim;
  task.config = llama_config_to_json(shape);
  if (tokenizer) task.files = tokenizer_files(*tokenizer);
  task.network_text =
      cat("vocabulary ", format_count(shape.vocab_size), tokenizer ? "" : " (the model's own)");
  task.network = llama_of(shape);
  task.smallest = llama_of(smallest_of(shape));
  task.inputs = [](const TrainConfig& of, at::Device device, int64_t batch) {
    const auto ids = at::TensorOptions().device(device).dtype(at::kLong);
    const std::vector<int64_t> sizes = {batch, of.block_size};
    return StepInputs{{at::ones(sizes, ids)}, at::ones(sizes, ids)};
  };
}

}  // namespace compact
