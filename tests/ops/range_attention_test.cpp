// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/range_attention.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "compact/ops/memory/memory.h"
#include "tests/ops/block.h"
#include "tests/ops/bound_segment.h"

namespace compact {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 6, kQkv = (kHeads + 2 * kKvHeads) * kDim;
constexpr int64_t kBatch = 3, kLength = 150;

using Range = std::tuple<int64_t, int64_t, int64_t>;
// Packed documents with padding between, behind padding, and a row of padding alone.
const std::vector<Range> kRanges = {{0, 0, 5}, {0, 5, 6}, {0, 8, 149}, {1, 3, 150}};

at::Tensor tensor_of(const std::vector<Range>& ranges) {
  std::vector<std::array<int64_t, 3>> numbers;
  for (const auto& [row, begin, end] : ranges) numbers.push_back({row, begin, end});
  return ranges_tensor(std::move(numbers)).clone();
}

struct Attended {
  at::Tensor y, gx;
  int64_t saved = 0;
};

// Both directions of attention whose input is a norm's output, treated as `how` says.
Attended attended(const at::Tensor& x, const at::Tensor& gy, const std::string& how,
                  const at::Tensor& ranges, const AttentionOptions& options = {}) {
  Parameter norm;
  norm.name = "norm";
  norm.weight = at::ones({kQkv}, x.options());
  BoundSegment segment("attention", Slot{"in", kQkv});
  segment.add(rms_norm_stage(1e-5), {&norm}, Slot{"qkv", kQkv, Treatment::parse(how)});
  segment.add(attention_stage(kHeads, kKvHeads, kDim, options), {}, Slot{"out", kHeads * kDim});
  segment.finish();
  segment.pass.ranges = ranges;
  segment.pass.training = true;
  const at::Tensor leaf = x.detach().clone().requires_grad_(true);
  const at::Tensor y = segment(leaf);
  y.backward(gy);
  return {y.detach(), leaf.grad(), segment.report.saved_bytes};
}

at::Tensor part(const at::Tensor& t, const Range& range) {
  const auto& [row, begin, end] = range;
  return t.narrow(0, row, 1).narrow(1, begin, end - begin);
}

// The bits of a document are those that it has alone, whatever lies beside it.
TEST(RangeAttention, IsThatOfEachDocument) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = noise({kBatch, kLength, kQkv}, "x", type);
    const at::Tensor gy = noise({kBatch, kLength, kHeads * kDim}, "gy", type);
    for (const char* how : {"keep", "recompute", "quantize:bits=8"}) {
      if (type == at::kBFloat16 && std::string(how) == "quantize:bits=8") continue;
      // In quantizers what lies beside a token in its group has a part.
      const bool exact = std::string(how) != "quantize:bits=8";
      const Attended all = attended(x, gy, how, tensor_of(kRanges));
      at::Tensor outside = at::ones({kBatch, kLength}, at::kBool);
      for (const Range& range : kRanges) {
        const Attended one = attended(part(x, range), part(gy, range), how, {});
        if (exact) {
          EXPECT_TRUE(at::equal(part(all.y, range), one.y)) << how;
          EXPECT_TRUE(at::equal(part(all.gx, range), one.gx)) << how;
        } else {
          EXPECT_TRUE(at::equal(part(all.y, range), one.y)) << how;
          EXPECT_TRUE(at::allclose(part(all.gx, range), one.gx, 0.1, 0.05)) << how;
        }
        part(outside.unsqueeze(2), range).zero_();
      }
      EXPECT_EQ(all.y.index({outside}).count_nonzero().item<int64_t>(), 0) << how;
      EXPECT_EQ(all.gx.index({outside}).count_nonzero().item<int64_t>(), 0) << how;
    }
  }
}

TEST(RangeAttention, OfWholeRowsIsTheSame) {
  const at::Tensor x = noise({kBatch, kLength, kQkv}, "x", at::kFloat);
  const at::Tensor gy = noise({kBatch, kLength, kHeads * kDim}, "gy", at::kFloat);
  const at::Tensor rows = tensor_of({{0, 0, kLength}, {1, 0, kLength}, {2, 0, kLength}});
  const Attended got = attended(x, gy, "keep", rows), want = attended(x, gy, "keep", {});
  EXPECT_TRUE(at::equal(got.y, want.y));
  EXPECT_TRUE(at::equal(got.gx, want.gx));
  EXPECT_EQ(got.saved, want.saved);
}

TEST(RangeAttention, OfNoTokensIsZero) {
  const at::Tensor x = noise({2, 3, kQkv}, "x", at::kFloat);
  const at::Tensor gy = noise({2, 3, kHeads * kDim}, "gy", at::kFloat);
  const Attended none = attended(x, gy, "keep", at::empty({0, 3}, at::kLong));
  EXPECT_EQ(none.y.count_nonzero().item<int64_t>(), 0);
  EXPECT_EQ(none.gx.count_nonzero().item<int64_t>(), 0);
}

// The ranges given to a pass must still be there when its backward pass runs.
TEST(RangeAttention, OfRangesThatChangedIsAnError) {
  BoundSegment segment("attention", Slot{"in", kQkv});
  segment.add(attention_stage(kHeads, kKvHeads, kDim), {}, Slot{"out", kHeads * kDim});
  segment.finish();
  segment.pass.ranges = tensor_of({{0, 0, 3}});
  const at::Tensor y = segment(noise({1, 3, kQkv}, "x", at::kFloat).requires_grad_(true));
  segment.pass.ranges.fill_(1);
  EXPECT_ANY_THROW(y.sum().backward());
}

// Windows, shorter and longer than the documents, and capped scores, whose scores are made in
// chunks.
TEST(RangeAttention, OfWindowsAndCapsIsThatOfEachDocument) {
  const at::Tensor x = noise({kBatch, kLength, kQkv}, "x", at::kFloat);
  const at::Tensor gy = noise({kBatch, kLength, kHeads * kDim}, "gy", at::kFloat);
  for (const AttentionOptions& options :
       {AttentionOptions{.window = 4}, AttentionOptions{.window = 200},
        AttentionOptions{.window = 7, .softcap = 2}, AttentionOptions{.softcap = 3}}) {
    const Attended all = attended(x, gy, "keep", tensor_of(kRanges), options);
    for (const Range& range : kRanges) {
      const Attended one = attended(part(x, range), part(gy, range), "keep", {}, options);
      EXPECT_TRUE(at::allclose(part(all.y, range), one.y, 1e-5, 1e-6)) << options.window;
      EXPECT_TRUE(at::allclose(part(all.gx, range), one.gx, 1e-5, 1e-5)) << options.window;
    }
  }
}

// Each range draws its own, which a backward pass draws again.
TEST(RangeAttention, DropsProbabilitiesOfEachRangeByItself) {
  const at::Tensor x = noise({kBatch, kLength, kQkv}, "x", at::kFloat);
  const at::Tensor gy = noise({kBatch, kLength, kHeads * kDim}, "gy", at::kFloat);
  const AttentionOptions options{.dropout = 0.5};
  const at::Tensor ranges = tensor_of(kRanges);
  const Attended all = attended(x, gy, "keep", ranges, options),
                 again = attended(x, gy, "recompute", ranges, options);
  EXPECT_TRUE(at::equal(all.y, again.y));
  EXPECT_TRUE(at::equal(all.gx, again.gx));
  const auto alone = [&](const Range& range) {
    const int64_t length = std::get<2>(range) - std::get<1>(range);
    return attended(part(x, range), part(gy, range), "keep", tensor_of({{0, 0, length}}), options)
        .y;
  };
  EXPECT_TRUE(at::equal(part(all.y, kRanges[0]), alone(kRanges[0])));
  EXPECT_FALSE(at::allclose(part(all.y, kRanges[2]), alone(kRanges[2])));
}

TEST(RangeAttention, RefusesOtherStages) {
  for (const AttentionOptions& options :
       {AttentionOptions{.causal = false}, AttentionOptions{.padded = true}}) {
    BoundSegment segment("attention", Slot{"in", kQkv});
    segment.add(attention_stage(kHeads, kKvHeads, kDim, options), {}, Slot{"out", kHeads * kDim});
    segment.finish();
    segment.pass.ranges = tensor_of({{0, 0, 3}});
    EXPECT_THROW(segment(noise({1, 3, kQkv}, "x", at::kFloat)), InputError);
  }
}

// Rows of a batch, and tokens of its rows.
TEST(RangeAttention, RangesOfAPartOfABatch) {
  const at::Tensor all = tensor_of({{0, 0, 3}, {0, 3, 9}, {1, 2, 4}, {2, 0, 1}});
  const auto part_is = [&](int64_t dim, int64_t from, int64_t count,
                           const std::vector<Range>& want) {
    return part_of_ranges(all, dim, from, count).equal(tensor_of(want));
  };
  EXPECT_TRUE(part_is(0, 0, 2, {{0, 0, 3}, {0, 3, 9}, {1, 2, 4}}));
  EXPECT_TRUE(part_is(0, 1, 2, {{0, 2, 4}, {1, 0, 1}}));
  EXPECT_TRUE(part_is(1, 0, 4, {{0, 0, 3}, {0, 3, 4}, {1, 2, 4}, {2, 0, 1}}));
  EXPECT_TRUE(part_is(1, 3, 3, {{0, 0, 3}, {1, 0, 1}}));
  EXPECT_EQ(part_of_ranges(all, 1, 9, 3).size(0), 0);
}

TEST(RangeAttention, PlacesBeginAnewInEachRange) {
  const at::Tensor ranges = tensor_of({{0, 1, 4}, {1, 0, 2}, {1, 2, 5}});
  EXPECT_TRUE(places_in_ranges(ranges, at::zeros({2, 5}, at::kLong))
                  .equal(at::tensor({0, 0, 1, 2, 0, 0, 1, 0, 1, 2}, at::kLong).view({2, 5})));
  EXPECT_EQ(scores_of_ranges(ranges, 100), 9 + 4 + 9);
  EXPECT_EQ(scores_of_ranges(ranges, 2), 6 + 4 + 6);
}

// A plan computes few ranges of a length; its peak is that of all: what the last ones take beside
// the extras of those before them.
TEST(RangeAttention, TakesOnMetaWhatItTakes) {
  install_counting_allocator();
  for (const std::vector<int64_t>& lengths :
       std::vector<std::vector<int64_t>>{{150},
                                         {9, 3, 9, 9, 3, 9, 12, 3, 12, 9},
                                         {3, 3, 3, 3, 12, 9, 9, 9},
                                         {12, 9, 9, 3, 3, 3}}) {
    std::vector<Range> ranges;
    for (int64_t begin = 0; const int64_t length : lengths) {
      ranges.emplace_back(1, begin, begin + length);
      begin += length;
    }
    const at::Tensor numbers = tensor_of(ranges);
    const auto bytes = [&](at::Device device) {
      const at::Tensor x = at::zeros({kBatch, kHeads, kLength, kDim}, device);
      const auto attend = [](const at::Tensor& q, const at::Tensor&, const at::Tensor&, uint64_t) {
        const at::Tensor beside = at::empty({q.size(2), 1000}, q.options());
        return AttentionResult{at::empty_like(q), {at::empty({q.size(2), 50}, q.options()), {}}};
      };
      const int64_t before = live_bytes(device);
      reset_peak(device);
      const AttentionResult r = range_attention(x, x, x, numbers, attend);
      EXPECT_EQ(r.extras.size(), 2 * ranges.size());
      return std::pair(peak_bytes(device) - before, live_bytes(device) - before);
    };
    EXPECT_EQ(bytes(at::kMeta), bytes(at::kCPU)) << lengths.size();
  }
}

TEST(RangeAttention, RangesAreChecked) {
  EXPECT_NO_THROW(check_ranges(tensor_of(kRanges), kBatch, kLength));
  EXPECT_NO_THROW(check_ranges(at::empty({0, 3}, at::kLong), 0, 0));
  const std::vector<std::vector<Range>> wrong = {
      {{0, 0, 0}},
      {{0, 3, 2}},
      {{0, -1, 2}},
      {{-1, 0, 2}},
      {{3, 0, 2}},
      {{0, 0, kLength + 1}},
      {{0, 0, 2}, {0, 1, 3}},
      {{0, 2, 3}, {0, 0, 1}},
      {{1, 0, 2}, {0, 3, 4}},
      {{0, 0, 2}, {0, 0, 2}},
      {{0, INT64_MIN, 2}},
      {{0, 0, INT64_MAX}},
  };
  for (const std::vector<Range>& ranges : wrong) {
    EXPECT_THROW(check_ranges(tensor_of(ranges), kBatch, kLength), InputError);
  }
  for (const at::Tensor& other : {at::zeros({1, 3}, at::kInt), at::zeros({3}, at::kLong),
                                  at::zeros({1, 2}, at::kLong), at::zeros({3, 2}, at::kLong).t(),
                                  at::zeros({1, 3}, at::device(at::kMeta).dtype(at::kLong))}) {
    EXPECT_THROW(check_ranges(other, kBatch, kLength), InputError);
  }
}

}  // namespace
}  // namespace compact
