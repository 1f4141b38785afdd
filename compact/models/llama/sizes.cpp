// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/sizes.h"

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

LlamaInfo named_as(std::string name, const LlamaConfig& c) {
  const BlockShape& b = c.block;
  return {std::move(name),
          cat("hidden ", b.hidden, ", MLP ", b.intermediate, ", ", c.num_hidden_layers, " layers, ",
              b.heads, " heads",
              b.kv_heads != b.heads ? cat(", ", b.kv_heads, " of keys and values") : ""),
          c};
}

LlamaInfo llama(std::string name, int64_t hidden, int64_t mlp, int64_t layers, int64_t heads) {
  return named_as(std::move(name), {.block = block_shape(hidden, mlp, heads, heads, hidden / heads),
                                    .num_hidden_layers = layers,
                                    .vocab_size = 32000});
}

// The rest with the published models' numbers. The vocabulary is that of the tokenizer where there
// is one.
LlamaInfo smollm2_135m() {
  LlamaConfig c{.block = block_shape(576, 1536, 9, 3, 64),
                .num_hidden_layers = 30,
                .vocab_size = 49152,
                .max_position_embeddings = 8192,
                .rope = {.theta = 1e5},
                .tie_word_embeddings = true,
                .initializer_range = 1.0 / 24};
  c.block.eps = 1e-5;
  return named_as("smollm2-135m", c);
}

LlamaInfo qwen2_5_0_5b() {
  LlamaConfig c{.model_type = "qwen2",
                .block = block_shape(896, 4864, 14, 2, 64),
                .num_hidden_layers = 24,
                .vocab_size = 151936,
                .max_position_embeddings = 32768,
                .rope = {.theta = 1e6},
                .tie_word_embeddings = true};
  c.block.qkv_bias = true;
  return named_as("qwen2.5-0.5b", c);
}

LlamaInfo qwen3(std::string name, const BlockShape& block, int64_t layers, bool tied) {
  LlamaConfig c{.model_type = "qwen3",
                .block = block,
                .num_hidden_layers = layers,
                .vocab_size = 151936,
                .max_position_embeddings = 40960,
                .rope = {.theta = 1e6},
                .tie_word_embeddings = tied};
  c.block.head_norms = true;
  return named_as(std::move(name), c);
}

LlamaInfo llama_3(std::string name, const BlockShape& block, int64_t layers, double factor,
                  bool tied) {
  LlamaConfig c{
      .block = block,
      .num_hidden_layers = layers,
      .vocab_size = 128256,
      .max_position_embeddings = 131072,
      .rope = {.kind = RopeKind::kLlama3, .theta = 5e5, .factor = factor, .original_length = 8192},
      .tie_word_embeddings = tied};
  c.block.eps = 1e-5;
  return named_as(std::move(name), c);
}

LlamaInfo mistral_7b() {
  LlamaConfig c{.model_type = "mistral",
                .block = block_shape(4096, 14336, 32, 8, 128),
                .num_hidden_layers = 32,
                .vocab_size = 32768,
                .max_position_embeddings = 32768,
                .rope = {.theta = 1e6}};
  c.block.eps = 1e-5;
  return named_as("mistral-7b", c);
}

LlamaInfo olmo2(std::string name, int64_t hidden, int64_t mlp, int64_t layers, int64_t heads) {
  LlamaInfo info = llama(std::move(name), hidden, mlp, layers, heads);
  info.config.model_type = "olmo2";
  info.config.vocab_size = 100352;
  info.config.max_position_embeddings = 4096;
  info.config.rope = {.theta = 5e5};
  BlockShape& block = info.config.block;
  block.pre_norms = false;
  block.head_norms = block.post_norms = block.whole_norms = true;
  return info;
}

}  // namespace

std::span<const LlamaInfo> llamas() {
  static const LlamaInfo all[] = {
      llama("llama-tiny", 128, 352, 4, 4),
      llama("llama-mini", 256, 704, 4, 4),
      llama("llama-60m", 512, 1376, 8, 8),
      llama("llama-130m", 768, 2048, 12, 12),
      llama("llama-350m", 1024, 2736, 24, 16),
      llama("llama-1b", 2048, 5461, 24, 32),
      llama("llama-3b", 2560, 6848, 32, 32),
      llama("llama-7b", 4096, 11008, 32, 32),
      smollm2_135m(),
      qwen2_5_0_5b(),
      qwen3("qwen3-0.6b", block_shape(1024, 3072, 16, 8, 128), 28, true),
      qwen3("qwen3-8b", block_shape(4096, 12288, 32, 8, 128), 36, false),
      qwen3("qwen3-32b", block_shape(5120, 25600, 64, 8, 128), 64, false),
      llama_3("llama-3.2-1b", block_shape(2048, 8192, 32, 8, 64), 16, 32, true),
      llama_3("llama-3.1-8b", block_shape(4096, 14336, 32, 8, 128), 32, 8, false),
      mistral_7b(),
      olmo2("olmo2-1b", 2048, 8192, 16, 16),
      olmo2("olmo2-7b", 4096, 11008, 32, 32),
  };
  return all;
}

}  // namespace compact
