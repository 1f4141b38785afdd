// SPDX-License-Identifier: Apache-2.0
// Attention with padding and dropout of probabilities by LibTorch's memory-efficient kernel for
// CUDA: one launch, no scores in memory (Rabe and Staats 2021). With padding alone also by its
// flash attention for the CPU, which takes a bias of scores, too.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "compact/ops/functions/attention.h"
#include "compact/ops/functions/masked_attention.h"

namespace compact {

// The bias that is added to scores [batch, heads, queries, keys]: 0, and -inf at keys from a
// sequence's length on. In memory one row for each sequence, of whole sixteens of elements and
// aligned to them, as the kernel reads it: last stride 1, the others multiples of 16.
at::Tensor padding_bias(const at::Tensor& lengths, at::ScalarType type, at::IntArrayRef scores);

// masked_attention() without window and capped scores, as many keys as queries, of heads padded to
// `width`. The result depends on the arguments alone: dropout is drawn from how.key, and the
// device's generator is left as it was. Extras, where they are wanted: logsumexp, seed and offset
// of the dropout.
AttentionResult efficient_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    const MaskedAttention& how, int64_t width,
                                    bool want_extras = true);
AttentionGradients efficient_attention_backward(const at::Tensor& gout, const at::Tensor& q,
                                                const at::Tensor& k, const at::Tensor& v,
                                                const at::Tensor& out,
                                                const std::vector<at::Tensor>& extras,
                                                const MaskedAttention& how, int64_t width);

// The same by the CPU's kernel, without dropout. Extra: logsumexp.
AttentionResult padded_flash_attention(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const MaskedAttention& how);
AttentionGradients padded_flash_attention_backward(const at::Tensor& gout, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const at::Tensor& out,
                                                   const std::vector<at::Tensor>& extras,
                                                   const MaskedAttention& how);

}  // namespace compact
