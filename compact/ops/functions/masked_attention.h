// SPDX-License-Identifier: Apache-2.0
// Attention with padding, dropout of probabilities, a sliding window or capped scores: no fused
// kernel of LibTorch has all of these on every device (for CUDA see efficient_attention.h). Scores
// exist for one chunk of queries at a time; the backward pass makes them again from queries and
// keys, and the mask of the dropout from its key, so that nothing is kept from the forward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace compact {

struct MaskedAttention {
  at::Tensor lengths;   // int64 [batch], at least 1: keys from there on are not attended; or
                        // undefined: all are
  double dropout = 0;   // of probabilities
  uint64_t key = 0;     // of the dropout
  bool causal = false;  // to no later token
  std::optional<double> scale = {};  // of scores; none: 1 / sqrt(dim)
  int64_t window = 0;  // causal: a token attends to so many, itself among them; 0: to all
  double softcap = 0;  // scores s are softcap tanh(s / softcap) (Gemma 2); 0: as they are
};

// Throws InputError where shapes and options do not fit together, or a tensor is empty.
void check_masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const MaskedAttention& how);

// softmax(scale q k^T) v, the softmax in f32. q, k, v [batch, heads, sequence, dim], any
// strides; causal, there may be more keys than queries, which are the last tokens then. The result
// has the shape of q, in memory [batch, sequence, heads, dim].
at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const MaskedAttention& how);

// Gradients of q, k, v, as many keys as queries, into gq, gk, gv, which may be the memory of q, k,
// v.
void masked_attention_backward(const at::Tensor& gout, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const MaskedAttention& how,
                               const at::Tensor& gq, const at::Tensor& gk, const at::Tensor& gv);

}  // namespace compact
