// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/config.h"

#include <algorithm>
#include <limits>

#include "compact/base/check.h"
#include "compact/base/model_numbers.h"
#include "compact/models/config_rows.h"

namespace compact {

int64_t longest_sequence(const LlamaConfig& config) {
  int64_t longest = config.max_position_embeddings;
  if (config.rope.kind == RopeKind::kDynamic) {
    constexpr double kMost = std::numeric_limits<int32_t>::max();
    longest = static_cast<int64_t>(
        std::min(kMost, config.rope.factor.value_or(1) * static_cast<double>(longest)));
  }
  return longest;
}

void check_llama_config(const LlamaConfig& config, std::string_view where) {
  check_sizes({{"hidden_size", config.hidden_size},
               {"intermediate_size", config.intermediate_size},
               {"num_hidden_layers", config.num_hidden_layers},
               {"num_attention_heads", config.num_attention_heads},
               {"num_key_value_heads", config.num_key_value_heads},
               {"head_dim", config.head_dim},
               {"vocab_size", config.vocab_size},
               {"max_position_embeddings", config.max_position_embeddings}},
              where);
  check_rotary_heads(config.hidden_size, config.num_attention_heads, config.num_key_value_heads,
                     config.head_dim, where);
  check_positive({{"rms_norm_eps", config.rms_norm_eps},
                  {"initializer_range", config.initializer_range},
                  {"embedding_multiplier", config.embedding_multiplier},
                  {"residual_multiplier", config.residual_multiplier},
                  {"attention_multiplier", config.attention_multiplier.value_or(1)},
                  {"logits_scaling", config.logits_scaling}},
                 where);
  check_dropouts({{"attention_dropout", config.attention_dropout}}, where);
  check_rope_config(config.rope, config.head_dim, where);
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  for (const auto& [key, list] : {std::pair("no_rope_layers", &config.rope_layers),
                                  std::pair("layer_types", &config.sliding_layers)}) {
    COMPACT_CHECK(list->empty() || list->size() == layers, where, ": ", key, " must have ", layers,
                  " entries, one of each layer, has ", list->size());
  }
  if (config.sliding_window) check_sizes({{"sliding_window", *config.sliding_window}}, where);
  if (config.bos_token_id) {
    check_token("bos_token_id", *config.bos_token_id, config.vocab_size, where);
  }
  for (const int64_t id : config.eos_token_ids) {
    check_token("eos_token_id", id, config.vocab_size, where);
  }
  if (config.pad_token_id) {
    check_token("pad_token_id", *config.pad_token_id, config.vocab_size, where);
  }
  COMPACT_CHECK(config.torch_dtype == "float32" || config.torch_dtype == "bfloat16" ||
                    config.torch_dtype == "float16",
                where, ": torch_dtype must be float32, bfloat16 or float16, is `",
                config.torch_dtype, "`");
}

}  // namespace compact
