// SPDX-License-Identifier: Apache-2.0
#include "compact/models/gemma/gemma.h"

#include <ATen/ATen.h>

#include <cmath>

#include "compact/models/config_rows.h"

namespace compact {
namespace {

BlockShape shape_of(const GemmaConfig& c) {
  return {.hidden = c.hidden_size,
          .intermediate = c.intermediate_size,
          .heads = c.num_attention_heads,
          .kv_heads = c.num_key_value_heads,
          .head_dim = c.head_dim,
          .eps = c.rms_norm_eps,
          .scale = 1 / std::sqrt(c.query_pre_attn_scalar),
          .attention_dropout = c.attention_dropout,
          .softcap = c.attn_logit_softcapping.value_or(0),
          .norms_add_one = true,
          .head_norms = c.head_norms,
          .post_norms = true,
          .geglu = true,
          .qkv_bias = c.attention_bias,
          .out_bias = c.attention_bias};
}

// In the type of the weights, as it was trained.
double embedding_scale(const GemmaConfig& c, at::ScalarType type) {
  return at::full({}, std::sqrt(static_cast<double>(c.hidden_size)), at::dtype(type))
      .item<double>();
}

}  // namespace

Gemma::Gemma(const GemmaConfig& config, const Policy& policy, const NetworkOptions& options)
    : GatedDecoder(policy, options, config.tokens(), shape_of(checked(config)),
                   {.layers = config.num_hidden_layers,
                    .initializer_range = config.initializer_range,
                    .tied = config.tie_word_embeddings,
                    .embedding = embedding_scale(config, options.dtype)}),
      config_(config) {
  cap_logits_at(config_.final_logit_softcapping.value_or(0));
  const auto whole = tables(config_.rope, config_.max_position_embeddings);
  const auto sliding =
      config_.head_norms ? tables(config_.sliding_rope, config_.max_position_embeddings) : whole;
  for (const bool slides : config_.sliding_layers) {
    add_block(slides ? sliding : whole, slides ? config_.sliding_window : 0);
  }
  finish_blocks();
}

}  // namespace compact
