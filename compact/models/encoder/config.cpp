// SPDX-License-Identifier: Apache-2.0
#include "compact/models/encoder/config.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/model_numbers.h"

namespace compact {

void check_encoder_config(const EncoderConfig& c, std::string_view where) {
  check_sizes({{"hidden_size", c.hidden_size},
               {"intermediate_size", c.intermediate_size},
               {"num_hidden_layers", c.num_hidden_layers},
               {"num_attention_heads", c.num_attention_heads},
               {"vocab_size", c.vocab_size},
               {"max_position_embeddings", c.max_position_embeddings},
               {"type_vocab_size", c.type_vocab_size}},
              where);
  check_heads(c.hidden_size, c.num_attention_heads, where);
  check_token("pad_token_id", c.pad_token_id, c.vocab_size, where);
  COMPACT_CHECK(c.max_length() >= 1, where, ": max_position_embeddings must be above ",
                c.first_position(), ", is ", c.max_position_embeddings);
  check_dropouts({{"hidden_dropout_prob", c.hidden_dropout},
                  {"attention_probs_dropout_prob", c.attention_dropout},
                  {"classifier_dropout", std::max(c.classifier_dropout, 0.0)}},
                 where);
  check_positive({{"layer_norm_eps", c.layer_norm_eps}, {"initializer_range", c.initializer_range}},
                 where);
  constexpr int64_t kMostLabels = 1 << 20;
  COMPACT_CHECK(c.outputs() >= 1 && c.outputs() <= kMostLabels, where,
                ": the number of labels must be from 1 to ", kMostLabels, ", is ", c.outputs());
  COMPACT_CHECK(!c.regression || c.outputs() == 1, where, ": a regression has one label, not ",
                c.outputs());
}

}  // namespace compact
