// SPDX-License-Identifier: Apache-2.0
// Operations that treat tokens one by one, run on some tokens at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compact/base/check.h"
#include "compact/ops/memory/memory.h"
#include "tests/ops/block.h"

namespace compact {
namespace {

using testing::HasSubstr;

std::string tile(int64_t tokens) { return cat("tile:tokens=", tokens); }

// Whether a slot is kept that tiles never make whole: silu is made with gate_up and product.
bool keeps_silu(Dropped dropped) { return !dropped[6] && (dropped[5] || dropped[7]); }

class Tiles : public testing::TestWithParam<at::ScalarType> {};

// Block::kTokens are 10: tiles of one token, of several with a smaller last one, and of all.
TEST_P(Tiles, GiveTheSameUnderEveryAssignment) {
  Block block(GetParam());
  const std::vector<at::Tensor> want = run_block(block, *block.segment({}));
  const double bound = GetParam() == at::kFloat ? 1e-6 : 1e-2;
  for (const int64_t tokens : {1, 3, 5, 9}) {
    for (int mask = 0; mask < 256; ++mask) {
      if (keeps_silu(mask)) continue;
      const auto segment = block.segment(mask, {}, tile(tokens));
      const std::vector<at::Tensor> got = run_block(block, *segment);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_LT(relative_error(got[i], want[i]), bound) << tokens << " " << mask << " " << i;
      }
    }
  }
}

TEST_P(Tiles, OfAllTokensChangeNoBit) {
  Block block(GetParam());
  const std::vector<at::Tensor> want = run_block(block, *block.segment({}));
  for (int mask = 0; mask < 256; ++mask) {
    if (keeps_silu(mask)) continue;
    const auto segment = block.segment(mask, {}, tile(Block::kTokens));
    EXPECT_TRUE(same_bits(run_block(block, *segment), want)) << mask;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Tiles, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(TilesOfTokens, MakeNoGradientThatNobodyAsksFor) {
  Block block(at::kFloat);
  const std::vector<at::Tensor> full = run_block(block, *block.segment({}));
  const auto all = block.parameters();
  for (size_t trained = 0; trained <= all.size(); ++trained) {
    for (const bool input : {false, true}) {
      if (trained == all.size() && !input) continue;
      for (size_t i = 0; i < all.size(); ++i) all[i]->weight.requires_grad_(i == trained);
      for (const Dropped dropped : {0xff, 0xf0, 0xe0, 0x60, 0xc0, 0x11}) {
        const auto segment = block.segment(dropped, {}, tile(3));
        const at::Tensor x = block.input().requires_grad_(input);
        (*segment)(x).backward(block.output_gradient());
        const std::vector<at::Tensor> got = block.take_gradients();
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i].defined(), i == trained) << dropped;
          if (i != trained) continue;
          EXPECT_LT(relative_error(got[i], full[i]), 1e-6) << dropped << " " << i;
        }
        ASSERT_EQ(x.grad().defined(), input);
        if (!input) continue;
        EXPECT_LT(relative_error(x.grad(), full.back()), 1e-6) << dropped;
      }
    }
  }
}

// The result's gradient is written over that of the sum; neither a second backward pass nor whoever
// gave it sees that.
TEST(TilesOfTokens, LeaveGivenGradientsAlone) {
  Block block(at::kFloat);
  const auto segment = block.segment(0xff, {}, tile(3));
  const at::Tensor x = block.input(), gy = block.output_gradient(), before = gy.clone();
  const at::Tensor y = (*segment)(x);
  const auto once = torch::autograd::grad({y}, {x}, {gy}, /*retain_graph=*/true);
  const auto twice = torch::autograd::grad({y}, {x}, {gy});
  EXPECT_TRUE(same_bits(once, twice));
  EXPECT_TRUE(same_bits(gy, before));
}

TEST(TilesOfTokens, TakeTheBytesOfATile) {
  install_counting_allocator();
  // All that a forward and a backward pass take beside their result, in the MLP alone.
  const auto peak = [](const std::string& how) {
    constexpr int64_t kTokens = 512, kWidth = 8, kMlp = 64;
    Parameter norm, up, down;
    norm.weight = noise({kWidth}, "norm", at::kFloat);
    up.weight = noise({2 * kMlp, kWidth}, "up", at::kFloat);
    down.weight = noise({kWidth, kMlp}, "down", at::kFloat);
    BoundSegment s("mlp", Slot{"input", kWidth});
    const auto slot = [&](const char* name, int64_t width) {
      return Slot{name, width, Treatment::parse(how)};
    };
    s.add(rms_norm_stage(1e-5), {&norm}, slot("norm", kWidth));
    s.add(linear_stage(), {&up}, slot("gate_up", 2 * kMlp));
    s.add(swiglu_stage(kMlp), {}, slot("product", kMlp), slot("silu", kMlp));
    s.add(linear_stage(), {&down});
    s.add_residual(0);
    s.finish();
    const at::Tensor x = noise({kTokens, kWidth}, "x", at::kFloat).requires_grad_(true);
    const at::Tensor gy = noise({kTokens, kWidth}, "gy", at::kFloat);
    reset_peak(at::kCPU);
    const int64_t before = live_bytes(at::kCPU);
    torch::autograd::backward({s(x)}, {gy});
    return peak_bytes(at::kCPU) - before;
  };
  EXPECT_GT(peak("recompute"), 512 * 3 * 64 * 4);
  EXPECT_LT(peak(tile(32)), 512 * 8 * 4 * 5 + 32 * (5 * 64) * 4);
}

// A mask of dropout is drawn in each tile, and drawn again where a backward pass rebuilds what is
// made of it: the gradient of an adapter's second matrix is the slope of the loss.
TEST(TilesOfTokens, DrawTheSameDropoutAgain) {
  const at::Tensor a = noise({2, 6}, "a", at::kFloat), b = noise({6, 2}, "b", at::kFloat),
                   w = noise({6, 6}, "w", at::kFloat), gy = noise({40, 6}, "gy", at::kFloat);
  Segment s("adapted", Slot{"in", 6});
  s.add(linear_stage(), Slot{"hidden", 6, Treatment::parse(tile(7))});
  s.add(adapted_linear_stage({}, {{0, 1, 0.5}}), Slot{"adapted", 6, Treatment::parse("recompute")});
  s.add(gelu_stage(false));
  s.finish();
  const auto loss = [&](const at::Tensor& second) {
    SegmentPass pass;
    pass.training = true;
    const at::Tensor y =
        s(noise({40, 6}, "x", at::kFloat), {w, w, a.clone().requires_grad_(true), second}, pass);
    return (y.to(at::kDouble) * gy).sum();
  };
  const at::Tensor leaf = b.clone().requires_grad_(true),
                   step = noise({6, 2}, "d", at::kFloat, 1e-2);
  loss(leaf).backward();
  const double slope = (loss(b + step) - loss(b - step)).item<double>() / 2;
  EXPECT_NEAR((leaf.grad() * step).sum().item<double>(), slope, 1e-2 * std::abs(slope));
}

// A step that overwrites its input begins them, and what they make is rebuilt for a later reader.
TEST(TilesOfTokens, RebuildWhatTheirFirstStepOverwrote) {
  const auto run = [](const std::string& how) {
    Segment s("scaled", Slot{"in", 6});
    s.add(linear_stage());
    s.add(scale_stage(3), Slot{"b", 6, Treatment::parse(how)});
    s.add(gelu_stage(false), Slot{"c", 6, Treatment::parse("recompute")});
    s.add(linear_stage());
    s.finish();
    std::vector<at::Tensor> leaves = {noise({10, 6}, "x", at::kFloat).requires_grad_(true)};
    for (const char* name : {"first", "second"}) {
      leaves.push_back(noise({6, 6}, name, at::kFloat).requires_grad_(true));
    }
    const at::Tensor y = s(leaves[0], {leaves[1], leaves[2]});
    return torch::autograd::grad({y}, leaves, {noise({10, 6}, "gy", at::kFloat)});
  };
  const std::vector<at::Tensor> want = run("recompute"), got = run(tile(3));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_LT(relative_error(got[i], want[i]), 1e-6) << i;
}

TEST(TilesOfTokens, AreRefusedOrRebuiltWholeByRule) {
  Block block(at::kFloat);
  const auto refusal = [&](auto make) {
    try {
      make();
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal([&] { block.segment(Dropped(0b00100000), {}, tile(3)); }),
              HasSubstr("slot `mlp.silu` = keep: it is made together with `mlp.product` in tiles"));
  EXPECT_THAT(
      refusal([&] {
        Segment s("two", Slot{"in", 6});
        s.add(linear_stage(), Slot{"a", 6, Treatment::parse(tile(3))});
        s.add(linear_stage(), Slot{"b", 6, Treatment::parse(tile(4))});
        s.add(linear_stage());
        s.finish();
      }),
      HasSubstr("slot `b` = tile:tokens=4: `a`, of which it is made, has tiles of 3 tokens"));
  EXPECT_THAT(refusal([] { Treatment::parse("tile:tokens=0"); }),
              HasSubstr("tile:tokens must be at least 1, is 0"));
  // The attention reads other tokens, and the residual sum two tensors.
  const auto segment = block.segment(0xff, {}, tile(3));
  run_block(block, *segment);
  for (const SlotBytes& row : segment->report.slots) {
    const bool by_token = row.name == "attn.norm" || row.name == "mlp.norm" ||
                          row.name == "mlp.gate_up" || row.name == "mlp.silu" ||
                          row.name == "mlp.product";
    if (row.name == "attn.input" || row.name == "block.extras") continue;
    EXPECT_EQ(row.treatment, by_token ? tile(3) : "recompute") << row.name;
    EXPECT_EQ(row.stored, 0) << row.name;
  }
  const std::vector<TilesRun> four_twice(2, {3, 4});  // of 10 tokens, in both halves
  EXPECT_EQ(segment->report.tiles, four_twice);
}

// A side output of a slot that is not in tiles is not either.
TEST(TilesOfTokens, AreNotSaidOfASideOutputAlone) {
  Segment s("mlp", Slot{"in", 8});
  s.add(linear_stage(), Slot{"gate_up", 8, Treatment::parse("recompute")});
  s.add(swiglu_stage(4), Slot{"product", 4, Treatment::parse("recompute")},
        Slot{"silu", 4, Treatment::parse(tile(3))});
  s.add(linear_stage());
  s.finish();
  for (const SlotUse& use : s.uses()) EXPECT_FALSE(use.in_tiles) << use.name;
}

}  // namespace
}  // namespace compact
