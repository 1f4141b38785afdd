// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/range_attention.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

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
  std::vector<int64_t> numbers;
  for (const auto& [row, begin, end] : ranges) {
    numbers.insert(numbers.end(), {row, begin, end});
  }
  return at::tensor(numbers, at::kLong).view({-1, 3});
}

struct Attended {
  at::Tensor y, gx;
  int64_t saved = 0;
};

// Both directions of attention whose input is a norm's output, treated as `how` says.
Attended attended(const at::Tensor& x, const at::Tensor& gy, const std::string& how,
                  const at::Tensor& ranges) {
  Parameter norm;
  norm.name = "norm";
  norm.weight = at::ones({kQkv}, x.options());
  BoundSegment segment("attention", Slot{"in", kQkv});
  segment.add(rms_norm_stage(1e-5), {&norm}, Slot{"qkv", kQkv, Treatment::parse(how)});
  segment.add(attention_stage(kHeads, kKvHeads, kDim), {}, Slot{"out", kHeads * kDim});
  segment.finish();
  segment.pass.ranges = ranges;
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

TEST(RangeAttention, RefusesOtherStages) {
  BoundSegment segment("attention", Slot{"in", kQkv});
  segment.add(attention_stage(kHeads, kKvHeads, kDim, {.window = 2}), {},
              Slot{"out", kHeads * kDim});
  segment.finish();
  segment.pass.ranges = tensor_of({{0, 0, 3}});
  EXPECT_THROW(segment(noise({1, 3, kQkv}, "x", at::kFloat)), InputError);
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
