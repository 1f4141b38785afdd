// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/range_attention.h"

#include <ATen/ATen.h>

#include <cassert>
#include <iterator>
#include <utility>

#include "compact/base/check.h"

namespace compact {
namespace {

struct TokenRange {
  int64_t row, begin, end;

  // The range's tokens of t [batch, heads, sequence, dim], a view.
  at::Tensor of(const at::Tensor& t) const {
    return t.narrow(0, row, 1).narrow(2, begin, end - begin);
  }
};

std::vector<TokenRange> read_ranges(const at::Tensor& ranges) {
  const auto* numbers = ranges.const_data_ptr<int64_t>();
  std::vector<TokenRange> all;
  for (int64_t i = 0; i < ranges.size(0); ++i) {
    all.push_back({numbers[3 * i], numbers[3 * i + 1], numbers[3 * i + 2]});
  }
  return all;
}

// Writes zeros for tokens that are in no range.
void zero_others(const at::Tensor& t, const std::vector<TokenRange>& ranges) {
  const auto zero = [&](int64_t row, int64_t begin, int64_t end) {
    if (begin < end) TokenRange{row, begin, end}.of(t).zero_();
  };
  auto next = ranges.begin();
  for (int64_t row = 0; row < t.size(0); ++row) {
    int64_t seen = 0;
    for (; next != ranges.end() && next->row == row; ++next) {
      zero(row, seen, next->begin);
      seen = next->end;
    }
    zero(row, seen, t.size(2));
  }
}

}  // namespace

void check_ranges(const at::Tensor& ranges, int64_t batch, int64_t length) {
  COMPACT_CHECK(ranges.is_cpu() && ranges.scalar_type() == at::kLong && ranges.dim() == 2 &&
                    ranges.size(1) == 3 && ranges.is_contiguous(),
                "[attention] ranges must be int64 [n, 3] on the CPU");
  TokenRange before{0, 0, 0};
  for (const TokenRange& r : read_ranges(ranges)) {
    const int64_t first = r.row == before.row ? before.end : 0;
    COMPACT_CHECK(r.row >= before.row && r.row < batch && r.begin >= first && r.begin < r.end &&
                      r.end <= length,
                  "[attention] range (", r.row, ", ", r.begin, ", ", r.end,
                  ") is empty, lies outside of [", batch, ", ", length, "] or not behind (",
                  before.row, ", ", before.begin, ", ", before.end, ")");
    before = r;
  }
}

AttentionResult range_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const at::Tensor& ranges, AttentionScale scale) {
  const std::vector<TokenRange> all = read_ranges(ranges);
  AttentionResult whole;
  whole.out = at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options()).transpose(1, 2);
  zero_others(whole.out, all);
  for (const TokenRange& r : all) {
    AttentionResult part = attention_forward(r.of(q), r.of(k), r.of(v), scale);
    r.of(whole.out).copy_(part.out);
    std::move(part.extras.begin(), part.extras.end(), std::back_inserter(whole.extras));
  }
  return whole;
}

void range_attention_backward(const at::Tensor& gout, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const at::Tensor& out,
                              const std::vector<at::Tensor>& extras, const at::Tensor& ranges,
                              AttentionScale scale, const at::Tensor& gq, const at::Tensor& gk,
                              const at::Tensor& gv) {
  const std::vector<TokenRange> all = read_ranges(ranges);
  assert(all.empty() || extras.size() % all.size() == 0);
  const auto each = static_cast<int64_t>(all.empty() ? 0 : extras.size() / all.size());
  auto next = extras.begin();
  for (const TokenRange& r : all) {
    const std::vector<at::Tensor> own(next, next + each);
    next += each;
    const AttentionGradients g =
        attention_backward(r.of(gout), r.of(q), r.of(k), r.of(v), r.of(out), own, scale);
    r.of(gq).copy_(g.gq);
    r.of(gk).copy_(g.gk);
    r.of(gv).copy_(g.gv);
  }
  for (const at::Tensor& g : {gq, gk, gv}) zero_others(g, all);
}

}  // namespace compact
