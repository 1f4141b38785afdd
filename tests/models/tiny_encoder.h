// SPDX-License-Identifier: Apache-2.0
// An encoder small enough for tests.
#pragma once

#include "compact/models/encoder/config.h"

namespace compact {

inline EncoderConfig tiny_encoder(EncoderKind kind = EncoderKind::kBert) {
  EncoderConfig c;
  c.kind = kind;
  c.hidden_size = 24;
  c.intermediate_size = 40;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 3;
  c.vocab_size = 50;
  c.max_position_embeddings = 32;
  c.initializer_range = 0.2;
  c.labels = {"a", "b", "c"};
  if (kind == EncoderKind::kRoberta) c.pad_token_id = 1;
  return c;
}

}  // namespace compact
