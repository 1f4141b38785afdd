// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/sizes.h"

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

LlamaInfo named_as(std::string name, const LlamaConfig& c) {
  const bool grouped = c.num_key_value_heads != c.num_attention_heads;
  return {std::move(name),
          cat("hidden ", c.hidden_size, ", MLP ", c.intermediate_size, ", ", c.num_hidden_layers,
              " layers, ", c.num_attention_heads, " heads",
              grouped ? cat(", ", c.num_key_value_heads, " of keys and values") : ""),
          c};
}

LlamaInfo llama(std::string name, int64_t hidden, int64_t mlp, int64_t layers, int64_t heads) {
  LlamaConfig c;
  c.hidden_size = hidden;
  c.intermediate_size = mlp;
  c.num_hidden_layers = layers;
  c.num_attention_heads = c.num_key_value_heads = heads;
  c.head_dim = hidden / heads;
  c.vocab_size = 32000;
  return named_as(std::move(name), c);
}

// With the published model's numbers. Its vocabulary is that of the tokenizer where there is one.
LlamaInfo llama3_2_1b() {
  LlamaConfig c{.hidden_size = 2048,
                .intermediate_size = 8192,
                .num_hidden_layers = 16,
                .num_attention_heads = 32,
                .num_key_value_heads = 8,
                .head_dim = 64,
                .vocab_size = 128256,
                .max_position_embeddings = 131072,
                .rms_norm_eps = 1e-5,
                .tie_word_embeddings = true};
  c.rope = {.kind = RopeKind::kLlama3, .theta = 5e5, .factor = 32, .original_length = 8192};
  return named_as("llama-3.2-1b", c);
}

LlamaInfo smollm2_135m() {
  return named_as("smollm2-135m", {.hidden_size = 576,
                                   .intermediate_size = 1536,
                                   .num_hidden_layers = 30,
                                   .num_attention_heads = 9,
                                   .num_key_value_heads = 3,
                                   .head_dim = 64,
                                   .vocab_size = 49152,
                                   .max_position_embeddings = 8192,
                                   .rms_norm_eps = 1e-5,
                                   .rope = {.theta = 1e5},
                                   .tie_word_embeddings = true,
                                   .initializer_range = 1.0 / 24});
}

LlamaInfo qwen2_5_0_5b() {
  return named_as("qwen2.5-0.5b", {.model_type = "qwen2",
                                   .hidden_size = 896,
                                   .intermediate_size = 4864,
                                   .num_hidden_layers = 24,
                                   .num_attention_heads = 14,
                                   .num_key_value_heads = 2,
                                   .head_dim = 64,
                                   .vocab_size = 151936,
                                   .max_position_embeddings = 32768,
                                   .rope = {.theta = 1e6},
                                   .qkv_bias = true,
                                   .tie_word_embeddings = true});
}

LlamaInfo qwen3_0_6b() {
  return named_as("qwen3-0.6b", {.model_type = "qwen3",
                                 .hidden_size = 1024,
                                 .intermediate_size = 3072,
                                 .num_hidden_layers = 28,
                                 .num_attention_heads = 16,
                                 .num_key_value_heads = 8,
                                 .head_dim = 128,
                                 .vocab_size = 151936,
                                 .max_position_embeddings = 40960,
                                 .rope = {.theta = 1e6},
                                 .head_norms = true,
                                 .tie_word_embeddings = true});
}

LlamaInfo mistral_7b() {
  return named_as("mistral-7b", {.model_type = "mistral",
                                 .hidden_size = 4096,
                                 .intermediate_size = 14336,
                                 .num_hidden_layers = 32,
                                 .num_attention_heads = 32,
                                 .num_key_value_heads = 8,
                                 .head_dim = 128,
                                 .vocab_size = 32768,
                                 .max_position_embeddings = 32768,
                                 .rms_norm_eps = 1e-5,
                                 .rope = {.theta = 1e6}});
}

LlamaInfo olmo2(std::string name, int64_t hidden, int64_t mlp, int64_t layers, int64_t heads) {
  LlamaInfo info = llama(std::move(name), hidden, mlp, layers, heads);
  info.config.model_type = "olmo2";
  info.config.vocab_size = 100352;
  info.config.max_position_embeddings = 4096;
  info.config.rope = {.theta = 5e5};
  info.config.head_norms = true;
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
      qwen3_0_6b(),
      llama3_2_1b(),
      mistral_7b(),
      olmo2("olmo2-1b", 2048, 8192, 16, 16),
      olmo2("olmo2-7b", 4096, 11008, 32, 32),
  };
  return all;
}

}  // namespace compact
