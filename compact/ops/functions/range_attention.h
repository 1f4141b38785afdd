// SPDX-License-Identifier: Apache-2.0
// Attention range by range: of sequences that follow one another in a row of a batch, or
// follow padding. Each is computed by itself, so that its bits depend on nothing beside it.
// On the meta device ranges of one length take the same: few are computed, for all (MetaTimes).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/ops/functions/attention.h"

namespace compact {

// Throws InputError unless `ranges` is int64 [n, 3] on the CPU, contiguous, of rows (row, begin,
// end) with begin < end <= length and row < batch, in order and without a token in two of them.
void check_ranges(const at::Tensor& ranges, int64_t batch, int64_t length);

// Ranges as a tensor on the CPU, whose memory is not counted: plans and steps have the same.
at::Tensor ranges_tensor(std::vector<std::array<int64_t, 3>> ranges);
// The ranges in part of a batch: in rows [from, from + count) (dim 0) or so many tokens of every
// row (dim 1), numbered from there on. A range that lies across a border is cut.
at::Tensor part_of_ranges(const at::Tensor& ranges, int64_t dim, int64_t from, int64_t count);
int64_t longest_range(const at::Tensor& ranges);
// int64 [batch, length] on `like`'s device: a token's number in its range, 0 in none.
at::Tensor places_in_ranges(const at::Tensor& ranges, const at::Tensor& like);
// Calls `one` with the tokens of each range of t [batch, sequence, width], a view, and how many
// they are; on the meta device once for all ranges of a length.
void for_ranges(const at::Tensor& ranges, const at::Tensor& t,
                FunctionRef<void(const at::Tensor&, int64_t length)> one);
// How many scores a head has in all ranges, with at most `most` keys for each token.
int64_t scores_of_ranges(const at::Tensor& ranges, int64_t most);

// One sequence's attention, the range of this number: q, k, v as for attention_forward.
using AttendRange = FunctionRef<AttentionResult(const at::Tensor& q, const at::Tensor& k,
                                                const at::Tensor& v, uint64_t number)>;
// That of the tokens of each range; tokens in none have zeros. `ranges` as check_ranges has them.
// Extras: those of the ranges, one after the other.
AttentionResult range_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const at::Tensor& ranges, AttendRange attend);

// The tensors of one range in a backward pass: gradients of q, k, v go into gq, gk, gv, which may
// be the memory of q, k, v. `out` and `extras` where forward left them.
struct RangeBackward {
  at::Tensor gout, q, k, v, out;
  std::vector<at::Tensor> extras;
  uint64_t number = 0;
  at::Tensor gq, gk, gv;
};
// Calls `one` for each range of the tensors of `all`, whose number is not read; tokens in no range
// have zeros.
void range_attention_backward(const RangeBackward& all, const at::Tensor& ranges,
                              FunctionRef<void(const RangeBackward&)> one);

}  // namespace compact
