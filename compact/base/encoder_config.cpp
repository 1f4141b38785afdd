// SPDX-License-Identifier: Apache-2.0
#include "compact/base/encoder_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "compact/base/check.h"

namespace compact {

void check_encoder_config(const EncoderConfig& c, std::string_view where) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMostLabels = 1 << 20;
  const std::pair<const char*, int64_t> sizes[] = {
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.num_hidden_layers},
      {"num_attention_heads", c.num_attention_heads},
      {"vocab_size", c.vocab_size},
      {"max_position_embeddings", c.max_position_embeddings},
      {"type_vocab_size", c.type_vocab_size},
  };
  for (const auto& [key, value] : sizes) {
    COMPACT_CHECK(value >= 1 && value <= kLargest, where, ": ", key, " must be from 1 to ",
                  kLargest, ", is ", value);
  }
  COMPACT_CHECK(c.hidden_size % c.num_attention_heads == 0, where,
                ": hidden_size must be a multiple of num_attention_heads, is ", c.hidden_size,
                " with ", c.num_attention_heads, " heads");
  COMPACT_CHECK(c.pad_token_id >= 0 && c.pad_token_id < c.vocab_size, where,
                ": pad_token_id must be from 0 to vocab_size - 1 = ", c.vocab_size - 1, ", is ",
                c.pad_token_id);
  COMPACT_CHECK(c.max_length() >= 1, where, ": max_position_embeddings must be above ",
                c.first_position(), ", is ", c.max_position_embeddings);
  const std::pair<const char*, double> dropouts[] = {
      {"hidden_dropout_prob", c.hidden_dropout},
      {"attention_probs_dropout_prob", c.attention_dropout},
      {"classifier_dropout", std::max(c.classifier_dropout, 0.0)},
  };
  for (const auto& [key, value] : dropouts) {
    COMPACT_CHECK(value >= 0 && value < 1, where, ": ", key, " must be at least 0 and below 1, is ",
                  value);
  }
  const std::pair<const char*, double> reals[] = {{"layer_norm_eps", c.layer_norm_eps},
                                                  {"initializer_range", c.initializer_range}};
  for (const auto& [key, value] : reals) {
    COMPACT_CHECK(std::isfinite(value) && value > 0, where, ": ", key,
                  " must be positive and finite, is ", value);
  }
  COMPACT_CHECK(c.outputs() >= 1 && c.outputs() <= kMostLabels, where,
                ": the number of labels must be from 1 to ", kMostLabels, ", is ", c.outputs());
  COMPACT_CHECK(!c.regression || c.outputs() == 1, where, ": a regression has one label, not ",
                c.outputs());
}

}  // namespace compact
