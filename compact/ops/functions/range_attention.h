// SPDX-License-Identifier: Apache-2.0
// Causal attention range by range: of sequences that follow one another in a row of a batch, or
// follow padding. Each is computed by itself, so that its bits depend on nothing beside it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "compact/ops/functions/attention.h"

namespace compact {

// Throws InputError unless `ranges` is int64 [n, 3] on the CPU, contiguous, of rows (row, begin,
// end) with begin < end <= length and row < batch, in order and without a token in two of them.
void check_ranges(const at::Tensor& ranges, int64_t batch, int64_t length);

// attention_forward of the tokens of each range; tokens in none have zeros. `ranges` as
// check_ranges has them. Extras: those of the ranges, one after the other.
AttentionResult range_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const at::Tensor& ranges, AttentionScale scale = {});
// Gradients of q, k, v into gq, gk, gv, which may be the memory of q, k, v.
void range_attention_backward(const at::Tensor& gout, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const at::Tensor& out,
                              const std::vector<at::Tensor>& extras, const at::Tensor& ranges,
                              AttentionScale scale, const at::Tensor& gq, const at::Tensor& gk,
                              const at::Tensor& gv);

}  // namespace compact
