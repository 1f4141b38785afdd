// SPDX-License-Identifier: Apache-2.0
#include "compact/models/models.h"

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/base/text.h"

namespace compact {
namespace {

ModelInfo llama(std::string name, int64_t hidden, int64_t mlp, int64_t layers, int64_t heads) {
  LlamaConfig c;
  c.hidden_size = hidden;
  c.intermediate_size = mlp;
  c.num_hidden_layers = layers;
  c.num_attention_heads = c.num_key_value_heads = heads;
  c.head_dim = hidden / heads;
  c.vocab_size = 32000;
  return {std::move(name),
          cat("hidden ", hidden, ", MLP ", mlp, ", ", layers, " layers, ", heads, " heads"), c};
}

}  // namespace

std::span<const ModelInfo> models() {
  static const ModelInfo all[] = {
      llama("llama-tiny", 128, 352, 4, 4),     llama("llama-mini", 256, 704, 4, 4),
      llama("llama-60m", 512, 1376, 8, 8),     llama("llama-130m", 768, 2048, 12, 12),
      llama("llama-350m", 1024, 2736, 24, 16), llama("llama-1b", 2048, 5461, 24, 32),
      llama("llama-3b", 2560, 6848, 32, 32),   llama("llama-7b", 4096, 11008, 32, 32),
  };
  return all;
}

const ModelInfo& model_named(const std::string& name) { return named(models(), name, "no model"); }

}  // namespace compact
