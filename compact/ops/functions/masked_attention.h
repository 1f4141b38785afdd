// SPDX-License-Identifier: Apache-2.0
// Attention of every token to all tokens of its sequence but padding, with dropout of
// probabilities: what no fused kernel of LibTorch does on every device. Scores exist for one chunk
// of queries at a time; the backward pass makes them anew from queries and keys, and the mask of
// the dropout from its key, so that nothing is kept from the forward pass.
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
  bool causal = false;  // to no token behind
  std::optional<double> scale = {};  // of scores; none: 1 / sqrt(dim)
};

// softmax(scale q k^T) v, the softmax in f32. q, k, v [batch, heads, sequence, dim], any
// strides. The result has this shape, in memory [batch, sequence, heads, dim].
at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const MaskedAttention& how);

// Gradients of q, k, v into gq, gk, gv, which may be the memory of q, k, v.
void masked_attention_backward(const at::Tensor& gout, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const MaskedAttention& how,
                               const at::Tensor& gq, const at::Tensor& gk, const at::Tensor& gv);

}  // namespace compact
