// SPDX-License-Identifier: Apache-2.0
// Every assignment of keep and recompute to the slots of a block.
#include <gtest/gtest.h>

#include "compact/ops/memory/memory.h"
#include "tests/ops/block.h"

namespace compact {
namespace {

std::string describe(Dropped dropped) {
  std::string text = "recomputed:";
  for (size_t i = 0; i < dropped.size(); ++i) {
    if (dropped[i]) text += std::string(" ") + kDroppable[i];
  }
  return text;
}

// Elements per token of a slot, written out once more.
int64_t width_of(size_t slot) {
  const int64_t n = Block::kWidth, m = Block::kMlp;
  const int64_t widths[] = {n, Block::kQkv, n, n, n, 2 * m, m, m};
  return widths[slot];
}

class Assignments : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { install_counting_allocator(); }
};

TEST_P(Assignments, GiveTheSameBits) {
  Block block(GetParam());
  const std::vector<at::Tensor> want = run_block(block, *block.segment({}));
  for (const at::Tensor& t : want) {
    ASSERT_TRUE(t.defined());
    ASSERT_GT(t.abs().max().item<double>(), 0);
  }
  for (int mask = 0; mask < 256; ++mask) {
    const Dropped dropped(mask);
    EXPECT_TRUE(same_bits(run_block(block, *block.segment(dropped)), want)) << describe(dropped);
  }
}

TEST_P(Assignments, HoldTheBytesPredictedAndRebuildTheRest) {
  Block block(GetParam());
  const auto size = static_cast<int64_t>(c10::elementSize(GetParam()));
  const int64_t extras = Block::kTokens * (2 + Block::kHeads) * 4;  // rstd twice, logsumexp
  for (int mask = 0; mask < 256; ++mask) {
    const Dropped dropped(mask);
    int64_t want = extras;
    int runs = 0;
    for (size_t i = 0; i < dropped.size(); ++i) {
      if (dropped[i]) {
        runs += kRunsToRebuild[i];
      } else {
        want += Block::kTokens * width_of(i) * size;
      }
    }
    const auto segment = block.segment(dropped);
    const at::Tensor x = block.input();
    const auto input = static_cast<int64_t>(x.nbytes());
    const int64_t before = live_bytes(at::kCPU);
    at::Tensor y = (*segment)(x);
    const int64_t held = live_bytes(at::kCPU) - before - static_cast<int64_t>(y.nbytes());
    EXPECT_EQ(held, want) << describe(dropped);

    int64_t rows = 0;
    for (const SlotBytes& b : segment->report.slots) rows += b.stored;
    EXPECT_EQ(rows, want + input) << describe(dropped);
    EXPECT_EQ(segment->report.saved_bytes, want + input) << describe(dropped);

    EXPECT_EQ(*segment->report.rebuilt, 0);
    y.backward(block.output_gradient());
    EXPECT_EQ(*segment->report.rebuilt, runs) << describe(dropped);
    block.take_gradients();
    x.mutable_grad() = at::Tensor();
    y = at::Tensor();
    EXPECT_EQ(live_bytes(at::kCPU), before) << describe(dropped);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Assignments, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace compact
