// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/range_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cassert>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "compact/base/check.h"
#include "compact/codecs/meta_times.h"

namespace compact {
namespace {

struct TokenRange {
  int64_t row, begin, end;

  int64_t length() const { return end - begin; }
  // The range's tokens of t [batch, heads, sequence, dim], a view.
  at::Tensor of(const at::Tensor& t) const {
    return t.narrow(0, row, 1).narrow(2, begin, length());
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

// Calls `one` for each range; on the meta device once for all ranges of a length.
void for_each(const std::vector<TokenRange>& ranges, bool meta,
              FunctionRef<void(const TokenRange&)> one) {
  std::map<int64_t, int64_t> counts;
  for (const TokenRange& r : ranges) ++counts[r.length()];
  for (const TokenRange& r : ranges) {
    const int64_t times = meta ? std::exchange(counts[r.length()], 0) : 1;
    if (times == 0) continue;
    const MetaTimes all(times);
    one(r);
  }
}

// Writes zeros for tokens that are in no range.
void zero_others(const at::Tensor& t, const std::vector<TokenRange>& ranges) {
  std::vector<TokenRange> others;
  const auto zero = [&](int64_t row, int64_t begin, int64_t end) {
    if (begin < end) others.push_back({row, begin, end});
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
  for_each(others, t.is_meta(), [&](const TokenRange& r) { r.of(t).zero_(); });
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
  const at::Tensor places = at::zeros({like.size(0), like.size(1)}, whole);
  for_each(read_ranges(ranges), like.is_meta(), [&](const TokenRange& r) {
    places.select(0, r.row).narrow(0, r.begin, r.length()).copy_(at::arange(r.length(), whole));
  });
  return places;
}

void for_ranges(const at::Tensor& ranges, const at::Tensor& t,
                FunctionRef<void(const at::Tensor&, int64_t)> one) {
  for_each(read_ranges(ranges), t.is_meta(), [&](const TokenRange& r) {
    one(t.select(0, r.row).narrow(0, r.begin, r.length()), r.length());
  });
}

int64_t longest_range(const at::Tensor& ranges) {
  int64_t most = 0;
  for (const TokenRange& r : read_ranges(ranges)) most = std::max(most, r.length());
  return most;
}

int64_t scores_of_ranges(const at::Tensor& ranges, int64_t most) {
  int64_t sum = 0;
  for (const TokenRange& r : read_ranges(ranges)) sum += r.length() * std::min(r.length(), most);
  return sum;
}

AttentionResult range_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const at::Tensor& ranges, AttendRange attend) {
  const std::vector<TokenRange> all = read_ranges(ranges);
  AttentionResult whole;
  whole.out = at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options()).transpose(1, 2);
  zero_others(whole.out, all);
  // On the meta device the first of a length counts for all of them. The last is computed, too,
  // since most is held beside it.
  const bool meta = q.is_meta();
  struct Alike {
    int64_t count = 0, seen = 0;
    std::vector<at::Tensor> extras;  // of the first
  };
  std::map<int64_t, Alike> of_length;
  for (const TokenRange& r : all) ++of_length[r.length()].count;
  for (uint64_t number = 0; number < all.size(); ++number) {
    const TokenRange& r = all[number];
    Alike& alike = of_length[r.length()];
    const bool first = alike.seen++ == 0, last = alike.seen == alike.count;
    if (meta && !first && !last) {
      // Beside the output, which has a place of its own in what is reserved.
      const at::Tensor out = at::empty_like(r.of(whole.out));
      for (const at::Tensor& t : alike.extras) {
        whole.extras.push_back(t.defined() ? at::empty_like(t) : t);
      }
      continue;
    }
    const MetaTimes times(!meta ? 1 : first ? alike.count : 0);
    AttentionResult part = attend(r.of(q), r.of(k), r.of(v), number);
    r.of(whole.out).copy_(part.out);
    if (meta && first) alike.extras = part.extras;
    std::move(part.extras.begin(), part.extras.end(), std::back_inserter(whole.extras));
  }
  return whole;
}

void range_attention_backward(const RangeBackward& whole, const at::Tensor& ranges,
                              FunctionRef<void(const RangeBackward&)> one) {
  const std::vector<TokenRange> all = read_ranges(ranges);
  assert(all.empty() || whole.extras.size() % all.size() == 0);
  const size_t each = all.empty() ? 0 : whole.extras.size() / all.size();
  for_each(all, whole.q.is_meta(), [&](const TokenRange& r) {
    const auto number = static_cast<uint64_t>(&r - all.data());
    const at::Tensor* const extras = whole.extras.data() + number * each;
    one({r.of(whole.gout),
         r.of(whole.q),
         r.of(whole.k),
         r.of(whole.v),
         whole.out.defined() ? r.of(whole.out) : whole.out,
         {extras, extras + each},
         number,
         r.of(whole.gq),
         r.of(whole.gk),
         r.of(whole.gv)});
  });
  for (const at::Tensor& g : {whole.gq, whole.gk, whole.gv}) zero_others(g, all);
}

}  // namespace compact
