// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/range_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cassert>
#include <iterator>
#include <memory>
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

at::Tensor ranges_tensor(std::vector<std::array<int64_t, 3>> ranges) {
  const auto own = std::make_shared<std::vector<std::array<int64_t, 3>>>(std::move(ranges));
  return at::from_blob(
      own->data(), {std::ssize(*own), 3}, [own](void*) {}, at::TensorOptions().dtype(at::kLong));
}

at::Tensor part_of_ranges(const at::Tensor& ranges, int64_t dim, int64_t from, int64_t count) {
  std::vector<std::array<int64_t, 3>> part;
  for (TokenRange r : read_ranges(ranges)) {
    if (dim == 0) {
      r.row -= from;
      if (r.row < 0 || r.row >= count) continue;
    } else {
      r.begin = std::max<int64_t>(r.begin - from, 0), r.end = std::min(r.end - from, count);
      if (r.begin >= r.end) continue;
    }
    part.push_back({r.row, r.begin, r.end});
  }
  return ranges_tensor(std::move(part));
}

at::Tensor places_in_ranges(const at::Tensor& ranges, const at::Tensor& like) {
  const auto whole = at::TensorOptions().device(like.device()).dtype(at::kLong);
  const at::Tensor places = at::arange(like.size(1), whole).unsqueeze(0).repeat({like.size(0), 1});
  for (const TokenRange& r : read_ranges(ranges)) {
    if (r.begin == 0) continue;
    const int64_t count = r.end - r.begin;
    places.select(0, r.row).narrow(0, r.begin, count).copy_(at::arange(count, whole));
  }
  return places;
}

void for_ranges(const at::Tensor& ranges, const at::Tensor& t,
                FunctionRef<void(const at::Tensor&, int64_t)> one) {
  for (const TokenRange& r : read_ranges(ranges)) {
    const int64_t length = r.end - r.begin;
    one(t.select(0, r.row).narrow(0, r.begin, length), length);
  }
}

int64_t scores_of_ranges(const at::Tensor& ranges, int64_t most) {
  int64_t sum = 0;
  for (const TokenRange& r : read_ranges(ranges)) {
    const int64_t length = r.end - r.begin;
    sum += length * std::min(length, most);
  }
  return sum;
}

AttentionResult range_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const at::Tensor& ranges, AttendRange attend) {
  const std::vector<TokenRange> all = read_ranges(ranges);
  AttentionResult whole;
  whole.out = at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options()).transpose(1, 2);
  zero_others(whole.out, all);
  uint64_t number = 0;
  for (const TokenRange& r : all) {
    AttentionResult part = attend(r.of(q), r.of(k), r.of(v), number++);
    r.of(whole.out).copy_(part.out);
    std::move(part.extras.begin(), part.extras.end(), std::back_inserter(whole.extras));
  }
  return whole;
}

void range_attention_backward(const RangeBackward& whole, const at::Tensor& ranges,
                              FunctionRef<void(const RangeBackward&)> one) {
  const std::vector<TokenRange> all = read_ranges(ranges);
  assert(all.empty() || whole.extras.size() % all.size() == 0);
  const auto each = static_cast<int64_t>(all.empty() ? 0 : whole.extras.size() / all.size());
  auto next = whole.extras.begin();
  uint64_t number = 0;
  for (const TokenRange& r : all) {
    one({r.of(whole.gout),
         r.of(whole.q),
         r.of(whole.k),
         r.of(whole.v),
         whole.out.defined() ? r.of(whole.out) : whole.out,
         {next, next + each},
         number++,
         r.of(whole.gq),
         r.of(whole.gk),
         r.of(whole.gv)});
    next += each;
  }
  for (const at::Tensor& g : {whole.gq, whole.gk, whole.gv}) zero_others(g, all);
}

}  // namespace compact
