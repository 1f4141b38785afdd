// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/llama.h"

#include "compact/models/config_rows.h"

namespace compact {

Llama::Llama(const LlamaConfig& config, const Policy& policy, const NetworkOptions& options)
    : GatedDecoder(policy, options, config.tokens(), checked(config).block,
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
