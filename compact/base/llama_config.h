// SPDX-License-Identifier: Apache-2.0
// The shape of a LLaMA model, in the words of Hugging Face's `config.json` of model_type `llama`.
// Plain data: io reads and writes it, models build from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace compact {

struct LlamaConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;   // none, one or several
  std::string torch_dtype = "float32";  // float32, bfloat16 or float16: of the stored weights

  bool operator==(const LlamaConfig&) const = default;
};

// Throws InputError, beginning with `where`, unless every size is in 1..2^31-1, hidden_size is a
// multiple of the heads and the heads of the key/value heads, head_dim is even (rotary positions
// turn pairs), the real numbers are finite and positive, the token ids are below vocab_size, and
// torch_dtype is one of the three.
void check_llama_config(const LlamaConfig& config, std::string_view where);

}  // namespace compact
