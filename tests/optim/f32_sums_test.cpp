// SPDX-License-Identifier: Apache-2.0
// Gradients of bf16 parameters summed in f32 over the backward passes of a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tests/optim/toy.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kMicro = 512, kRows = 16, kColumns = 48, kTokens = 8;

// The gradient of (x W^T * g).sum() over independent micro-batches, by autograd; and what it is in
// f64 of the same inputs.
struct Accumulated {
  at::Tensor gradient, exact, sum_of_rounded;
};
Accumulated accumulated(bool f32_sums) {
  Parameter p{.name = "w", .weight = normal({kRows, kColumns}, 1).to(at::kBFloat16)};
  p.weight.requires_grad_(true);
  Optimizer optimizer({&p}, {.f32_sums = f32_sums});
  Accumulated result{.exact = at::zeros({kRows, kColumns}, at::kDouble),
                     .sum_of_rounded = at::zeros({kRows, kColumns})};
  for (int64_t micro = 0; micro < kMicro; ++micro) {
    optimizer.begin_backward(0.01);
    const at::Tensor x = normal({kTokens, kColumns}, derive(2, micro)).to(at::kBFloat16);
    const at::Tensor g = normal({kTokens, kRows}, derive(3, micro)).to(at::kBFloat16);
    torch::autograd::backward({(at::linear(x, p.weight) * g).sum()}, {});
    result.exact += g.to(at::kDouble).t().mm(x.to(at::kDouble));
    result.sum_of_rounded += g.t().mm(x).to(at::kFloat);
    EXPECT_EQ(p.weight.grad().defined(), !f32_sums);
  }
  result.gradient = optimizer.states()[0].gradient().clone();
  return result;
}

double error_of(const Accumulated& a) {
  return ((a.gradient.to(at::kDouble) - a.exact).norm() / a.exact.norm()).item<double>();
}

// In bf16 each addition rounds; in f32 what is left is the rounding of each micro-batch's own
// gradient, whose errors are independent: 2^-9 / sqrt(3) of the sum, about.
TEST(F32Sums, ErrOfManyMicroBatchesIsThatOfOne) {
  const Accumulated plain = accumulated(false), sums = accumulated(true);
  EXPECT_EQ(plain.gradient.scalar_type(), at::kBFloat16);
  EXPECT_EQ(sums.gradient.scalar_type(), at::kFloat);
  RecordProperty("bf16", std::to_string(error_of(plain)));
  RecordProperty("f32", std::to_string(error_of(sums)));
  EXPECT_GT(error_of(plain), 1.5e-2);
  EXPECT_LT(error_of(sums), 2e-3);
  EXPECT_TRUE(at::equal(sums.gradient, sums.sum_of_rounded));
}

struct SumsCase {
  std::string name;
  OptimizerKind kind;
  std::string projection;
  bool master;
};
void PrintTo(const SumsCase& c, std::ostream* out) { *out << c.name; }

class F32SumsOf : public testing::TestWithParam<SumsCase> {};

// A step takes them as it would take the same f32 gradients, clipped alike.
TEST_P(F32SumsOf, AreWhatAStepTakes) {
  const auto& [name, kind, projection, master] = GetParam();
  const ToyOptions toy{.projection = projection, .period = 2, .type = at::kBFloat16};
  const OptimizerOptions options{.kind = kind, .weight_decay = 0.1, .master_weights = master};
  OptimizerOptions with_sums = options;
  with_sums.f32_sums = true;
  Toy one(toy), two(toy);
  Optimizer sums(one.pointers(), with_sums), plain(two.pointers(), options);
  for (int64_t step = 0; step < 3; ++step) {
    sums.begin_backward(0.01);
    one.accumulate(step);
    std::vector<at::Tensor> by_hand;
    for (int64_t micro = 0; micro < Toy::kMicroBatches; ++micro) {
      two.accumulate(step, micro);
      for (size_t i = 0; i < two.parameters.size(); ++i) {
        const at::Tensor part = two.parameters[i].leaf().grad().to(at::kFloat);
        micro ? by_hand[i].add_(part) : by_hand.emplace_back(part);
        two.parameters[i].leaf().mutable_grad().reset();
      }
    }
    for (size_t i = 0; i < by_hand.size(); ++i) {
      two.parameters[i].leaf().mutable_grad() = by_hand[i];
    }
    const at::Tensor norm = sums.gradient_norm();
    EXPECT_TRUE(at::equal(norm, plain.gradient_norm()));
    sums.step(0.01, Optimizer::clip_factor(norm, 0.1));
    plain.step(0.01, Optimizer::clip_factor(norm, 0.1));
  }
  for (size_t i = 0; i < one.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(one.parameters[i].weight, two.parameters[i].weight)) << i;
    EXPECT_FALSE(sums.states()[i].gradient().defined()) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, F32SumsOf,
    testing::Values(SumsCase{"adamw", OptimizerKind::kAdamW, "", false},
                    SumsCase{"adamw_projected", OptimizerKind::kAdamW, "srht", false},
                    SumsCase{"adamw_master", OptimizerKind::kAdamW, "", true},
                    SumsCase{"muon", OptimizerKind::kMuon, "", false},
                    SumsCase{"muon_projected_master", OptimizerKind::kMuon, "gaussian", true},
                    SumsCase{"sgd", OptimizerKind::kSgd, "", false},
                    SumsCase{"sgd_projected", OptimizerKind::kSgd, "srht", false},
                    SumsCase{"adam", OptimizerKind::kAdam, "", false}),
    [](const auto& info) { return info.param.name; });

TEST(F32Sums, OfF32ParametersAreAutograds) {
  Toy toy({});
  Optimizer optimizer(toy.pointers(), {.f32_sums = true});
  optimizer.begin_backward(0.01);
  toy.accumulate(0);
  for (const Parameter& p : toy.parameters) EXPECT_TRUE(p.leaf().grad().defined());
}

TEST(F32Sums, NameWhatIsNotFinite) {
  Toy toy({.projection = "srht", .type = at::kBFloat16});
  Optimizer optimizer(toy.pointers(), {.f32_sums = true});
  optimizer.begin_backward(0.01);
  toy.accumulate(0, 0);
  optimizer.states()[2].sum[3] = NAN;
  EXPECT_EQ(optimizer.nonfinite(optimizer.gradient_norm()), "g");
  toy.accumulate(0, 1);
  EXPECT_EQ(optimizer.nonfinite(optimizer.gradient_norm()), "g");
}

// Somebody else's backward pass, for example one that measures, is autograd's.
TEST(F32Sums, AreOfAStepOnly) {
  Toy toy({.type = at::kBFloat16});
  Optimizer optimizer(toy.pointers(), {.f32_sums = true});
  const auto own = [&] { return toy.parameters[0].leaf().grad().defined(); };
  toy.accumulate(0);
  EXPECT_TRUE(own());
  toy.parameters[0].leaf().mutable_grad().reset();
  optimizer.begin_backward(0.01);
  toy.accumulate(0);
  EXPECT_FALSE(own());
  optimizer.step(0.01);
  toy.accumulate(0);
  EXPECT_TRUE(own());
}

TEST(F32Sums, EndWithTheirOptimizer) {
  Toy toy({.type = at::kBFloat16});
  {
    Optimizer optimizer(toy.pointers(), {.f32_sums = true});
    optimizer.begin_backward(0.01);
  }
  toy.accumulate(0);
  EXPECT_EQ(toy.parameters[0].leaf().grad().scalar_type(), at::kBFloat16);
}

TEST(F32Sums, RefuseWhatGoesPastThem) {
  Toy toy({.type = at::kBFloat16});
  toy.parameters[1].release = true;
  EXPECT_THAT([&] { Optimizer(toy.pointers(), {.f32_sums = true}); },
              ThrowsMessage<InputError>(HasSubstr("`b` is updated inside the backward pass")));
  toy.parameters[1].release = false;
  Optimizer optimizer(toy.pointers(), {.f32_sums = true});
  optimizer.begin_backward(0.01);
  toy.accumulate(0);
  toy.parameters[3].leaf().mutable_grad() = at::zeros_like(toy.parameters[3].weight);
  EXPECT_THAT([&] { optimizer.step(0.01); },
              ThrowsMessage<InputError>(HasSubstr("`v` has a gradient beside the f32 sum")));
}

}  // namespace
}  // namespace compact
