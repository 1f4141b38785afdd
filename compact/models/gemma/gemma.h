// SPDX-License-Identifier: Apache-2.0
// Gemma 2 and the text models of Gemma 3 (Gemma Team 2024, 2025): RMSNorm before and after
// attention and MLP, rotary positions, grouped-query attention in windows but for some layers,
// GeGLU. Gemma 2 caps scores and logits; Gemma 3 norms queries and keys, and turns them by two
// tables. Every block is one segment. Parameters and slots are those of gated_decoder.h, with norms
// after attention and MLP.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compact/base/rope_config.h"
#include "compact/models/gated_decoder.h"

namespace compact {

class ConfigRows;

// Blocks of Gemma 3 (`third`), which have norms of heads, or of Gemma 2.
BlockShape gemma_block(bool third, int64_t hidden, int64_t intermediate, int64_t heads,
                       int64_t kv_heads, int64_t head_dim = 256);

// The shape of blocks, and the other settings as Hugging Face's `config.json` names them. Defaults
// are those of model_type gemma3_text.
struct GemmaConfig {
  BlockShape block = gemma_block(true, 2304, 9216, 8, 4);  // but for its scale
  int64_t num_hidden_layers = 26;
  int64_t vocab_size = 262208, max_position_embeddings = 131072;
  double query_pre_attn_scalar = 256;  // scores are divided by its root
  int64_t sliding_window = 4096;       // of these layers, in tokens
  std::vector<bool> sliding_layers;    // for each layer
  RopeConfig rope = {.theta = 1e6};
  RopeConfig sliding_rope;             // gemma3_text, of these layers
  double final_logit_softcapping = 0;  // 0: none
  bool tie_word_embeddings = true;
  double initializer_range = 0.02;
  std::optional<int64_t> bos_token_id = 2;
  std::vector<int64_t> eos_token_ids = {1};
  std::optional<int64_t> pad_token_id = 0;  // its embedding gets no gradient as an input

  TokenIds tokens() const { return {vocab_size, bos_token_id, eos_token_ids, pad_token_id}; }
  bool operator==(const GemmaConfig&) const = default;
};
void keys_of(ConfigRows& rows, GemmaConfig& c);  // see config_rows.h
// The first member that config.json cannot say, where `read` is what it says.
std::string difference(const GemmaConfig& c, const GemmaConfig& read);
// Which of so many layers have a window: all but each `period`-th.
std::vector<bool> gemma_windows(int64_t layers, int64_t period);

class Gemma final : public GatedDecoder {
 public:
  // Weights normal(0, initializer_range), of norms 0, biases 0. Throws InputError where the policy
  // names slots or parameters that the model lacks, or treatments that cannot be.
  Gemma(const GemmaConfig& config, const Policy& policy, const NetworkOptions& options);
  Gemma(const Gemma&) = delete;

  const GemmaConfig& config() const { return config_; }

 private:
  GemmaConfig config_;
};

}  // namespace compact
