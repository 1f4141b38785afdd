// SPDX-License-Identifier: Apache-2.0
#include "compact/base/llama_config.h"

#include <cmath>
#include <limits>
#include <utility>

#include "compact/base/check.h"

namespace compact {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();

void check_token(std::string_view where, const char* key, int64_t id, int64_t vocabulary) {
  COMPACT_CHECK(id >= 0 && id < vocabulary, where, ": ", key,
                " must be from 0 to vocab_size - 1 = ", vocabulary - 1, ", is ", id);
}

}  // namespace

void check_llama_config(const LlamaConfig& config, std::string_view where) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},
      {"max_position_embeddings", config.max_position_embeddings},
  };
  for (const auto& [key, value] : sizes) {
    COMPACT_CHECK(value >= 1 && value <= kLargest, where, ": ", key, " must be from 1 to ",
                  kLargest, ", is ", value);
  }
  COMPACT_CHECK(config.hidden_size % config.num_attention_heads == 0, where,
                ": hidden_size must be a multiple of num_attention_heads, is ", config.hidden_size,
                " with ", config.num_attention_heads, " heads");
  COMPACT_CHECK(config.num_attention_heads % config.num_key_value_heads == 0, where,
                ": num_attention_heads must be a multiple of num_key_value_heads, is ",
                config.num_attention_heads, " with ", config.num_key_value_heads);
  COMPACT_CHECK(config.head_dim % 2 == 0, where, ": head_dim must be even, is ", config.head_dim);
  const std::pair<const char*, double> reals[] = {
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_theta", config.rope_theta},
      {"initializer_range", config.initializer_range},
  };
  for (const auto& [key, value] : reals) {
    COMPACT_CHECK(std::isfinite(value) && value > 0, where, ": ", key,
                  " must be positive and finite, is ", value);
  }
  if (config.bos_token_id) {
    check_token(where, "bos_token_id", *config.bos_token_id, config.vocab_size);
  }
  for (int64_t id : config.eos_token_ids) check_token(where, "eos_token_id", id, config.vocab_size);
  COMPACT_CHECK(config.torch_dtype == "float32" || config.torch_dtype == "bfloat16" ||
                    config.torch_dtype == "float16",
                where, ": torch_dtype must be float32, bfloat16 or float16, is `",
                config.torch_dtype, "`");
}

}  // namespace compact
