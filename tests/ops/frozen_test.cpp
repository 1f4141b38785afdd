// SPDX-License-Identifier: Apache-2.0
// The tensors that are held, and the gradients made, where only some gradients are asked for.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compact/base/check.h"
#include "compact/ops/memory/memory.h"
#include "tests/ops/block.h"

namespace compact {
namespace {

constexpr int64_t kWidth = Block::kWidth, kMlp = Block::kMlp, kQkv = Block::kQkv;

// In the order of Block::parameters().
enum Trained { kAttnNorm, kQkvWeight, kOut, kMlpNorm, kGateUp, kDown, kNone };

void freeze_but(Block& block, Trained trained) {
  const auto all = block.parameters();
  for (size_t i = 0; i < all.size(); ++i) all[i]->weight.requires_grad_(i == trained);
}

struct FrozenCase {
  const char* name;
  Trained trained;
  bool input;          // its gradient is asked for
  int64_t elements;    // per token that the backward pass reads, the block's input not counted
  int64_t statistics;  // f32 per token: a norm's, and of each head of the attention
};
constexpr int64_t kFromMiddle = kWidth + 3 * kMlp;  // mlp.input, gate_up, silu
constexpr int64_t kFromAttention = kFromMiddle + kQkv + kWidth;
constexpr FrozenCase kCases[] = {
    {"only_the_input", kNone, true, kFromAttention, 2 + Block::kHeads},
    {"attn_norm", kAttnNorm, false, kFromAttention, 2 + Block::kHeads},
    {"qkv", kQkvWeight, false, kFromAttention + kWidth, 1 + Block::kHeads},
    {"out", kOut, false, kFromMiddle + kWidth, 1},
    {"mlp_norm", kMlpNorm, false, kFromMiddle, 1},
    {"gate_up", kGateUp, false, kWidth + 3 * kMlp, 0},
    {"down", kDown, false, kMlp, 0},
    {"down_and_the_input", kDown, true, kFromAttention + kMlp, 2 + Block::kHeads},
};

class Frozen : public testing::TestWithParam<FrozenCase> {
 protected:
  void SetUp() override { install_counting_allocator(); }
};

TEST_P(Frozen, HoldsNoMoreThanBackwardReads) {
  const FrozenCase& c = GetParam();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Block block(type);
    const auto size = static_cast<int64_t>(c10::elementSize(type));
    freeze_but(block, c.trained);
    const auto segment = block.segment({});
    const at::Tensor x = block.input().requires_grad_(c.input);
    const int64_t before = live_bytes(at::kCPU);
    at::Tensor y = (*segment)(x);
    const int64_t held = live_bytes(at::kCPU) - before - static_cast<int64_t>(y.nbytes());
    EXPECT_EQ(held, Block::kTokens * (c.elements * size + c.statistics * 4));
    // The rows of the table sum up to what is held, and the input where it is read.
    const bool reads_input = c.input || c.trained == kAttnNorm;
    EXPECT_EQ(segment->report.saved_bytes,
              held + (reads_input ? static_cast<int64_t>(x.nbytes()) : 0));
    y.backward(block.output_gradient());
    EXPECT_EQ(*segment->report.rebuilt, 0);
    block.take_gradients();
    x.mutable_grad() = y = at::Tensor();
    EXPECT_EQ(live_bytes(at::kCPU), before);
  }
}

TEST_P(Frozen, GivesTheBitsOfTheFullPassUnderEveryAssignment) {
  const FrozenCase& c = GetParam();
  Block block(at::kFloat);
  const std::vector<at::Tensor> full = run_block(block, *block.segment({}));
  freeze_but(block, c.trained);
  for (int mask = 0; mask < 256; ++mask) {
    const auto segment = block.segment(Dropped(mask));
    const at::Tensor x = block.input().requires_grad_(c.input);
    (*segment)(x).backward(block.output_gradient());
    const std::vector<at::Tensor> got = block.take_gradients();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(same_bits(got[i], i == c.trained ? full[i] : at::Tensor())) << mask << " " << i;
    }
    EXPECT_TRUE(same_bits(x.grad(), c.input ? full.back() : at::Tensor())) << mask;
  }
}

INSTANTIATE_TEST_SUITE_P(Trained, Frozen, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// The gradients that a backward pass asked of a stage.
struct Asked {
  int times = 0;
  bool input = false;
  std::vector<bool> parameters;
};

class Watched final : public Stage {
 public:
  Watched(std::shared_ptr<const Stage> stage, Asked* asked)
      : stage_(std::move(stage)), asked_(asked) {}
  Needs needs() const override { return stage_->needs(); }
  int reads_input_for() const override { return stage_->reads_input_for(); }
  int parameters() const override { return stage_->parameters(); }
  at::Tensor forward(Forward& f) const override { return stage_->forward(f); }
  at::Tensor backward(Backward& b) const override {
    ++asked_->times;
    asked_->input = b.want_input;
    asked_->parameters = b.want_parameters;
    return stage_->backward(b);
  }

 private:
  std::shared_ptr<const Stage> stage_;
  Asked* asked_;
};

TEST(FrozenSteps, NoGradientIsMadeThatNobodyAsksFor) {
  Parameter p[3];
  Asked asked[3];
  BoundSegment segment("three", Slot{"in", 4});
  for (int i = 0; i < 3; ++i) {
    p[i].weight = noise({4, 4}, cat("w", i), at::kFloat).requires_grad_(i == 1);
    segment.add(std::make_shared<Watched>(linear_stage(), &asked[i]), {&p[i]},
                i < 2 ? Slot{cat("t", i), 4} : Slot{});
  }
  segment.finish();
  const at::Tensor x = noise({5, 4}, "x", at::kFloat), gy = noise({5, 4}, "gy", at::kFloat);
  segment(x).backward(gy);
  EXPECT_EQ(asked[0].times, 0);
  EXPECT_EQ(asked[1].times, 1);
  EXPECT_FALSE(asked[1].input);
  EXPECT_TRUE(asked[2].input);
  EXPECT_EQ(asked[2].parameters, std::vector<bool>{false});

  // The graph can give all gradients; one pass asks for one of them.
  for (Parameter& q : p) q.weight.requires_grad_(true);
  const at::Tensor y = segment(x);
  for (Asked& a : asked) a = {};
  const auto one = torch::autograd::grad({y}, {p[2].weight}, {gy}, /*retain_graph=*/true);
  EXPECT_EQ(asked[0].times + asked[1].times, 0);
  EXPECT_EQ(asked[2].times, 1);
  EXPECT_FALSE(asked[2].input);
  const auto all = torch::autograd::grad({y}, {p[0].weight, p[1].weight, p[2].weight}, {gy});
  EXPECT_TRUE(same_bits(one[0], all[2]));
}

TEST(FrozenSteps, ABranchWithoutGradientIsLeftOut) {
  Parameter frozen, trained;
  Asked asked[2];
  frozen.weight = noise({4, 4}, "frozen", at::kFloat);
  trained.weight = noise({4, 4}, "trained", at::kFloat).requires_grad_(true);
  BoundSegment segment("fork", Slot{"in", 4});
  segment.add(std::make_shared<Watched>(linear_stage(), &asked[0]), {&frozen});
  segment.add_branch(0, std::make_shared<Watched>(linear_stage(), &asked[1]), {&trained});
  segment.add_residual(1);
  segment.finish();
  const at::Tensor x = noise({5, 4}, "x", at::kFloat), gy = noise({5, 4}, "gy", at::kFloat);
  segment(x).backward(gy);
  EXPECT_EQ(asked[0].times, 0);
  EXPECT_EQ(asked[1].times, 1);
  EXPECT_LT(relative_error(trained.weight.grad(), gy.t().mm(x)), 1e-6);
}

}  // namespace
}  // namespace compact
