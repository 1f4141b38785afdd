// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/llama.h"

#include "compact/models/config_rows.h"

namespace compact {
namespace {

GatedShape shape_of(const LlamaConfig& c) {
  return {.hidden = c.hidden_size,
          .intermediate = c.intermediate_size,
          .layers = c.num_hidden_layers,
          .heads = c.num_attention_heads,
          .kv_heads = c.num_key_value_heads,
          .head_dim = c.head_dim,
          .eps = c.rms_norm_eps,
          .head_norms = c.head_norms,
          .qkv_bias = c.qkv_bias,
          .out_bias = c.out_bias,
          .mlp_bias = c.mlp_bias,
          .residual = c.residual_multiplier,
          .embedding = c.embedding_multiplier,
          .pad = c.pad_token_id,
          .fused_names = c.fused_names};
}

}  // namespace

Llama::Llama(const LlamaConfig& config, const Policy& policy, const NetworkOptions& options)
    : GatedDecoder(policy, options, config.tokens(), shape_of(checked(config)),
                   config.initializer_range, config.tie_word_embeddings),
      config_(config) {
  const auto rope = tables(config_.rope, config_.max_position_embeddings);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    add_block(config_.turns(i) ? rope : nullptr,
              {.scale = config_.attention_multiplier,
               .dropout = config_.attention_dropout,
               .window = config_.slides(i) ? *config_.sliding_window : 0});
  }
  finish_blocks(1 / config_.logits_scaling);
}

}  // namespace compact
