// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/llama.h"

#include "compact/models/config_rows.h"
#include "compact/models/llama/model_types.h"

namespace compact {
namespace {

BlockShape shape_of(const LlamaConfig& c) {
  BlockShape shape = decoder_family(c.model_type, "model").block;
  shape.hidden = c.hidden_size;
  shape.intermediate = c.intermediate_size;
  shape.heads = c.num_attention_heads;
  shape.kv_heads = c.num_key_value_heads;
  shape.head_dim = c.head_dim;
  shape.eps = c.rms_norm_eps;
  shape.scale = c.attention_multiplier.value_or(0);
  shape.attention_dropout = c.attention_dropout;
  shape.residual = c.residual_multiplier;
  shape.head_norms = c.head_norms;
  shape.qkv_bias = c.qkv_bias;
  shape.out_bias = c.out_bias;
  shape.mlp_bias = c.mlp_bias;
  shape.qkv_parts = c.fused_names ? 1 : 3;
  shape.gate_up_parts = c.fused_names ? 1 : 2;
  return shape;
}

}  // namespace

Llama::Llama(const LlamaConfig& config, const Policy& policy, const NetworkOptions& options)
    : GatedDecoder(policy, options, config.tokens(), shape_of(checked(config)),
                   {.layers = config.num_hidden_layers,
                    .initializer_range = config.initializer_range,
                    .tied = config.tie_word_embeddings,
                    .embedding = config.embedding_multiplier}),
      config_(config) {
  const auto rope = tables(config_.rope, config_.max_position_embeddings);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    add_block(config_.turns(i) ? rope : nullptr, config_.slides(i) ? *config_.sliding_window : 0);
  }
  finish_blocks(1 / config_.logits_scaling);
}

}  // namespace compact
