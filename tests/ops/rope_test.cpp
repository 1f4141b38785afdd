// SPDX-License-Identifier: Apache-2.0
// Tables and stage of rotary positions; tests/models/hf_parity.py compares all types of tables.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "tests/ops/block.h"

namespace compact {
namespace {

constexpr int64_t kTurned = 8;  // of heads 12 wide

RopeTables tables_of(RopeConfig c, int64_t positions, int64_t length,
                     at::Device device = at::kCPU) {
  return RopeTables::make(c, 12, positions, length, device);
}

RopeConfig partial(RopeKind kind) {
  RopeConfig c{.kind = kind, .theta = 100, .partial = 2.0 / 3, .factor = 3};
  if (kind == RopeKind::kLongrope) c.short_factor = {1, 1, 1, 2}, c.long_factor = {1, 2, 3, 4};
  if (kind != RopeKind::kDefault) c.original_length = 7;
  return c;
}

TEST(RopeTables, OfLinearPositionsAreThoseOfSlowerOnes) {
  const RopeTables plain = tables_of(partial(RopeKind::kDefault), 64, 9);
  const RopeTables linear = tables_of(partial(RopeKind::kLinear), 64, 9);
  EXPECT_EQ(plain.near.cos.sizes(), (std::vector<int64_t>{9, kTurned / 2}));
  for (const int64_t i : {0, 1, 2}) {
    EXPECT_TRUE(at::allclose(linear.near.sin[3 * i], plain.near.sin[i], 1e-5, 1e-6)) << i;
  }
  EXPECT_FALSE(linear.is_far(9));
}

TEST(RopeTables, OfLongSequencesAreOthers) {
  for (const RopeKind kind : {RopeKind::kDynamic, RopeKind::kLongrope}) {
    const RopeTables longer = tables_of(partial(kind), 7, 15);
    const RopeTables shorter = tables_of(partial(kind), 7, 7);
    EXPECT_FALSE(shorter.far.cos.defined());
    EXPECT_TRUE(at::equal(longer.for_length(7).cos, shorter.near.cos));
    EXPECT_EQ(&longer.for_length(8), &longer.far);
    EXPECT_EQ(longer.far.cos.size(0), 15);
    EXPECT_FALSE(at::allclose(longer.far.cos.narrow(0, 0, 7), longer.near.cos, 1e-2, 1e-2));
  }
}

// Plans count these bytes.
TEST(RopeTables, AreAsLargeOnTheMetaDevice) {
  for (const RopeKind kind : {RopeKind::kDefault, RopeKind::kDynamic, RopeKind::kLongrope}) {
    for (const int64_t length : {5, 7, 20}) {
      const RopeTables real = tables_of(partial(kind), 7, length);
      const RopeTables meta = tables_of(partial(kind), 7, length, at::kMeta);
      EXPECT_EQ(meta.near.sin.sizes(), real.near.sin.sizes());
      EXPECT_EQ(meta.far.sin.defined(), real.far.sin.defined());
      if (real.far.sin.defined()) {
        EXPECT_EQ(meta.far.sin.sizes(), real.far.sin.sizes());
      }
    }
  }
}

TEST(RopeStage, TurnsTheFirstPartOfEachHead) {
  constexpr int64_t kQueries = 3, kAll = 4, kWide = 12, kTokens = 6;
  const auto tables = std::make_shared<RopeTables>(tables_of(partial(RopeKind::kDefault), 64, 16));
  BoundSegment segment("block", Slot{"in", kAll * kWide});
  segment.add(rope_stage(tables, kQueries, kWide));
  segment.finish();
  const at::Tensor x = noise({1, kTokens, kAll * kWide}, "x", at::kFloat).requires_grad_(true);
  const at::Tensor y = segment(x);
  const at::Tensor in = x.detach().view({kTokens, kAll, kWide});
  const at::Tensor out = y.detach().view({kTokens, kAll, kWide});
  EXPECT_TRUE(
      at::equal(out.narrow(2, kTurned, kWide - kTurned), in.narrow(2, kTurned, kWide - kTurned)));
  EXPECT_TRUE(at::equal(out.select(1, 3), in.select(1, 3)));  // after the heads
  const at::Tensor half = in.narrow(2, 0, kTurned / 2), other = in.narrow(2, 4, kTurned / 2);
  const at::Tensor cos = tables->near.cos.narrow(0, 0, kTokens).unsqueeze(1),
                   sin = tables->near.sin.narrow(0, 0, kTokens).unsqueeze(1);
  const at::Tensor want = half * cos - other * sin;
  EXPECT_TRUE(at::allclose(out.narrow(2, 0, 4).narrow(1, 0, kQueries), want.narrow(1, 0, kQueries),
                           1e-5, 1e-6));
  y.backward(y.detach());  // a rotation's adjoint is its inverse
  EXPECT_TRUE(at::allclose(x.grad(), x.detach(), 1e-5, 1e-6));
}

}  // namespace
}  // namespace compact
