// SPDX-License-Identifier: Apache-2.0
// A LLaMA small enough for tests, and its data.
#pragma once

#include <ATen/ATen.h>

#include <cstring>
#include <string>
#include <vector>

#include "compact/base/check.h"
#include "compact/models/llama/llama.h"

namespace compact {

inline constexpr int64_t n = 32, m = 44, kLayers = 3, kHeads = 4, kWords = 61, kBatch = 2,
                         kLength = 9;
inline constexpr int64_t kTokens = kBatch * kLength;

inline LlamaConfig shape(bool tied = false) {
  return {.block = block_shape(n, m, kHeads, kHeads, n / kHeads),
          .num_hidden_layers = kLayers,
          .vocab_size = kWords,
          .tie_word_embeddings = tied,
          .initializer_range = 0.1};
}

inline LlamaConfig with_olmo2_norms(LlamaConfig c) {
  c.model_type = "olmo2";
  c.block.pre_norms = false, c.block.post_norms = true;
  c.block.head_norms = c.block.whole_norms = true;
  return c;
}

// It, and with what other model types add.
struct DecoderKind {
  std::string name;
  LlamaConfig config;
};
inline std::vector<DecoderKind> decoder_kinds() {
  LlamaConfig qwen2 = shape(true), qwen3 = shape(), phi3 = shape(), smollm3 = shape(true),
              granite = shape(), olmo2 = shape();
  qwen2.block.qkv_bias = true, qwen2.block.kv_heads = 2;
  qwen3.block.head_norms = true, qwen3.block.kv_heads = 2, qwen3.block.head_dim = 12;
  phi3.rope.partial = 0.5, phi3.block.qkv_parts = phi3.block.gate_up_parts = 1;
  smollm3.rope_layers = {true, false, true}, smollm3.block.out_bias = smollm3.block.mlp_bias = true;
  granite.embedding_multiplier = 3, granite.block.residual = 0.5;
  granite.block.scale = 0.3, granite.logits_scaling = 2;
  olmo2 = with_olmo2_norms(olmo2), olmo2.block.kv_heads = 2;
  LlamaConfig mistral = shape();
  mistral.sliding_window = 4, mistral.sliding_layers = {true, false, true};
  LlamaConfig every = qwen3;
  every.tie_word_embeddings = every.block.qkv_bias = every.block.out_bias = every.block.mlp_bias =
      true;
  every.block.residual = 0.5, every.rope_layers = {false, true, false};
  every.rope.partial = 0.5;
  return {{"plain", shape()},   {"tied", shape(true)}, {"qwen2", qwen2},     {"qwen3", qwen3},
          {"phi3", phi3},       {"smollm3", smollm3},  {"granite", granite}, {"every", every},
          {"mistral", mistral}, {"olmo2", olmo2}};
}
inline void PrintTo(const DecoderKind& kind, std::ostream* out) { *out << kind.name; }

inline Policy policy(const std::string& preset, const std::string& more = "") {
  Policy p = Policy::preset(preset);
  p.append(Policy::parse(more, "test"));
  return p;
}

inline at::Tensor ids(int64_t step = 0) {
  return at::arange(kTokens, at::kLong)
      .mul_(11)
      .add_(step * 5)
      .remainder_(kWords)
      .view({kBatch, kLength});
}
inline at::Tensor targets(int64_t step = 0) {
  at::Tensor t = ids(step).roll(-1, 1).contiguous();
  t.select(1, kLength - 1).fill_(-100);
  return t;
}
inline at::Tensor loss_of(const Llama& model, int64_t step = 0, PassReport* report = nullptr) {
  return model.loss({ids(step)}, targets(step), {.scale = 1.0 / (kTokens - kBatch)}, report);
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace compact
