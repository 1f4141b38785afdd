// SPDX-License-Identifier: Apache-2.0
// The shape of a decoder of LLaMA's kind (Llama, Mistral, Qwen, Phi-3, SmolLM3, Granite), with the
// settings outside of blocks as Hugging Face's `config.json` names them. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compact/base/rope_config.h"
#include "compact/models/model_config.h"
#include "compact/networks/block_shape.h"

namespace compact {

class ConfigRows;

struct LlamaConfig {
  std::string model_type = "llama";  // whose config.json and names of tensors are written
  BlockShape block;                  // of every layer, but for `rope` and `window`
  int64_t num_hidden_layers = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 2048;
  RopeConfig rope;
  std::vector<bool> rope_layers;  // which layers turn queries and keys; empty: all
  // A token attends to so many, itself among them: in these layers, in all where none is named.
  std::optional<int64_t> sliding_window;
  std::vector<bool> sliding_layers;
  double embedding_multiplier = 1;  // of what the first block reads
  double logits_scaling = 1;        // logits are divided by it
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;   // none, one or several
  std::optional<int64_t> pad_token_id;  // its embedding gets no gradient as an input

  bool turns(int64_t layer) const {
    return rope_layers.empty() || rope_layers[static_cast<size_t>(layer)];
  }
  bool slides(int64_t layer) const {
    return sliding_window && (sliding_layers.empty() || sliding_layers[static_cast<size_t>(layer)]);
  }
  TokenIds tokens() const { return {vocab_size, bos_token_id, eos_token_ids, pad_token_id}; }
  bool operator==(const LlamaConfig&) const = default;
};

// The longest sequence that the model can be given: max_position_embeddings, with dynamic rotary
// positions `factor` times that.
int64_t longest_sequence(const LlamaConfig& config);

void keys_of(ConfigRows& rows, LlamaConfig& c);  // see config_rows.h
// The first member that config.json cannot say, where `read` is what it says.
std::string difference(const LlamaConfig& c, const LlamaConfig& read);

}  // namespace compact
