// SPDX-License-Identifier: Apache-2.0
#include "compact/models/gemma/gemma.h"

#include <ATen/ATen.h>

#include <cmath>

#include "compact/models/config_rows.h"

namespace compact {
namespace {

BlockShape scaled(const GemmaConfig& c) {
  BlockShape shape = c.block;
  shape.scale = 1 / std::sqrt(c.query_pre_attn_scalar);
  return shape;
}

// In the type of the weights, as it was trained.
double embedding_scale(const GemmaConfig& c, at::ScalarType type) {
  return at::full({}, std::sqrt(static_cast<double>(c.block.hidden)), at::dtype(type))
      .item<double>();
}

}  // namespace

BlockShape gemma_block(bool third, int64_t hidden, int64_t intermediate, int64_t heads,
                       int64_t kv_heads, int64_t head_dim) {
  BlockShape shape = block_shape(hidden, intermediate, heads, kv_heads, head_dim);
  shape.norms_add_one = shape.post_norms = shape.geglu = true;
  shape.head_norms = third;
  return shape;
}

Gemma::Gemma(const GemmaConfig& config, const Policy& policy, const NetworkOptions& options)
    : GatedDecoder(policy, options, config.tokens(), scaled(checked(config)),
                   {.layers = config.num_hidden_layers,
                    .initializer_range = config.initializer_range,
                    .tied = config.tie_word_embeddings,
                    .embedding = embedding_scale(config, options.dtype)}),
      config_(config) {
  cap_logits_at(config_.final_logit_softcapping);
  const auto whole = tables(config_.rope, config_.max_position_embeddings);
  const auto sliding = config_.block.head_norms
                           ? tables(config_.sliding_rope, config_.max_position_embeddings)
                           : whole;
  for (const bool slides : config_.sliding_layers) {
    add_block(slides ? sliding : whole, slides ? config_.sliding_window : 0);
  }
  finish_blocks();
}

}  // namespace compact
