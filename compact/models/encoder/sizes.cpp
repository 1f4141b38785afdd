// SPDX-License-Identifier: Apache-2.0
#include "compact/models/encoder/sizes.h"

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

EncoderInfo sized(std::string name, int64_t hidden, int64_t layers, int64_t heads,
                  EncoderConfig c) {
  c.hidden_size = hidden;
  c.intermediate_size = 4 * hidden;
  c.num_hidden_layers = layers;
  c.num_attention_heads = heads;
  return {std::move(name),
          cat("hidden ", hidden, ", MLP ", 4 * hidden, ", ", layers, " layers, ", heads, " heads"),
          c};
}
EncoderInfo bert(std::string name, int64_t hidden, int64_t layers, int64_t heads) {
  return sized(std::move(name), hidden, layers, heads, {.vocab_size = 30522});
}
EncoderInfo roberta(std::string name, int64_t hidden, int64_t layers, int64_t heads) {
  return sized(std::move(name), hidden, layers, heads,
               {.kind = EncoderKind::kRoberta,
                .vocab_size = 50265,
                .max_position_embeddings = 514,
                .type_vocab_size = 1,
                .pad_token_id = 1,
                .layer_norm_eps = 1e-5});
}

}  // namespace

std::span<const EncoderInfo> encoders() {
  static const EncoderInfo all[] = {
      bert("bert-tiny", 128, 2, 2),         bert("minilm-l6", 384, 6, 12),
      bert("bert-base", 768, 12, 12),       bert("bert-large", 1024, 24, 16),
      roberta("roberta-base", 768, 12, 12), roberta("roberta-large", 1024, 24, 16),
  };
  return all;
}

}  // namespace compact
