// SPDX-License-Identifier: Apache-2.0
// Products with low-rank adapters (LoRA) against the same of plain operations.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>

#include "compact/ops/segments/segment.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType type = at::kFloat, bool trained = true) {
  return at::randn(sizes).to(type).requires_grad_(trained);
}

std::vector<at::Tensor> gradients(const at::Tensor& y, const std::vector<at::Tensor>& of) {
  return torch::autograd::grad(
      {y}, of, {at::sin(at::arange(y.numel())).view(y.sizes()).to(y.scalar_type())});
}

// Two products of one input, the second with two adapters and the first with one.
struct Adapted {
  Adapted(at::ScalarType type, at::ScalarType of_adapters, bool bias, bool frozen, double dropout,
          int64_t tokens) {
    at::manual_seed(1);
    x = leaf({2, tokens, 6}, type);
    w = {leaf({4, 6}, type, !frozen), leaf({3, 6}, type, !frozen)};
    if (bias) b = {leaf({4}, type, !frozen), leaf({3}, type, !frozen)};
    for (const int64_t out : {4, 3, 3}) {
      adapters.push_back(leaf({2, 6}, of_adapters));
      adapters.push_back(leaf({out, 2}, of_adapters));
    }
    segment.add(adapted_linear_stage({.bias = bias, .parts = 2},
                                     {{0, 0.5, dropout}, {4, 2, dropout}, {4, -1, dropout}}));
    segment.finish();
  }
  at::Tensor run(const SegmentPass& pass = {}, SegmentReport* report = nullptr) {
    std::vector<Weight> weights(w.begin(), w.end());
    weights.insert(weights.end(), b.begin(), b.end());
    weights.insert(weights.end(), adapters.begin(), adapters.end());
    return segment(x, weights, pass, report);
  }
  // As peft has it: each adapter in its own type, what they give rounded once.
  at::Tensor plain() const {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < 2; ++i) {
      parts.push_back(at::linear(x, w[i], b.empty() ? std::nullopt : std::optional(b[i])));
    }
    constexpr std::array<double, 3> kScales = {0.5, 2, -1};
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor &a = adapters[2 * i], &up = adapters[2 * i + 1];
      const at::Tensor delta = at::linear(at::linear(x.to(a.scalar_type()), a), up) * kScales[i];
      at::Tensor& part = parts[i == 0 ? 0 : 1];
      part = (part + delta);
    }
    for (at::Tensor& part : parts) part = part.to(x.scalar_type());
    return at::cat(parts, -1);
  }
  std::vector<at::Tensor> trained() const {
    std::vector<at::Tensor> all = {x};
    for (const auto& some : {w, b, adapters}) {
      for (const at::Tensor& t : some) {
        if (t.requires_grad()) all.push_back(t);
      }
    }
    return all;
  }

  at::Tensor x;
  std::vector<at::Tensor> w, b, adapters;
  Segment segment{"s", Slot{.name = "in"}};
};

// Whatever a codec gives for columns of the input that are padding.
TEST(AdaptedLinear, PaddingOfAHasNoGradient) {
  at::manual_seed(1);
  const at::Tensor x = leaf({2, 3, 6}), w = leaf({4, 6}), a = leaf({2, 6}), b = leaf({4, 2});
  Segment segment("s", Slot{.name = "in"});
  segment.add(adapted_linear_stage({.zeros = 2}, {{0, 1, 0}}));
  segment.finish();
  const std::vector<Weight> weights = {w, a, b};
  const at::Tensor g = gradients(segment(x, weights, {}, nullptr), {a})[0];
  EXPECT_EQ(g.narrow(1, 4, 2).abs().max().item<float>(), 0);
  EXPECT_GT(g.narrow(1, 0, 4).abs().min().item<float>(), 0);
}

TEST(AdaptedLinear, IsTheSameOfPlainOperations) {
  for (const bool bias : {false, true}) {
    for (const bool frozen : {false, true}) {
      Adapted a(at::kFloat, at::kFloat, bias, frozen, 0, 5);
      const at::Tensor y = a.run(), expected = a.plain();
      EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-5));
      const auto got = gradients(y, a.trained()), want = gradients(expected, a.trained());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(at::allclose(got[i], want[i], 1e-4, 1e-5)) << i;
      }
    }
  }
}

TEST(AdaptedLinear, AdaptersComputeInTheirOwnType) {
  Adapted a(at::kBFloat16, at::kFloat, false, true, 0, 700);  // more tokens than one chunk has
  const at::Tensor y = a.run(), expected = a.plain();
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(y.narrow(-1, 0, 4), expected.narrow(-1, 0, 4)));
  // Two adapters of one product are rounded one after the other.
  const at::Tensor far = (y.to(at::kFloat) - expected.to(at::kFloat)).norm();
  EXPECT_LT(far.item<float>(), 4e-3f * expected.to(at::kFloat).norm().item<float>());
  const auto got = gradients(y, a.trained()), want = gradients(expected, a.trained());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), want[i].scalar_type());
    const at::Tensor off = (got[i].to(at::kFloat) - want[i].to(at::kFloat)).norm();
    EXPECT_LT(off.item<float>(), 0.02f * want[i].to(at::kFloat).norm().item<float>()) << i;
  }
}

// A chunk of a hundred is less than half of the last bit of their sum in bfloat16.
TEST(AdaptedLinear, SumsOverManyTokensAreNotRoundedByChunks) {
  const int64_t tokens = 100'000;
  at::manual_seed(1);
  const at::Tensor x = at::rand({1, tokens, 8}).add_(0.5).to(at::kBFloat16);
  const at::Tensor w = at::zeros({8, 8}, at::kBFloat16),
                   a = at::rand({2, 8}).to(at::kBFloat16).requires_grad_(true),
                   b = at::rand({8, 2}).to(at::kBFloat16).requires_grad_(true);
  Segment segment("s", Slot{.name = "in"});
  // So few are dropped that the gradients are those without.
  segment.add(adapted_linear_stage({}, {{0, 1, 1e-6}}));
  segment.finish();
  const at::Tensor y = segment(x, {w, a, b}, {.training = true, .noise = 3});
  const auto got = torch::autograd::grad({y}, {a, b}, {at::ones_like(y)});
  const at::Tensor sums = x.to(at::kDouble).sum({0, 1});
  const at::Tensor want_a = b.to(at::kDouble).sum(0).unsqueeze(1) * sums,
                   want_b = a.to(at::kDouble).mv(sums).expand({8, 2});
  EXPECT_TRUE(at::allclose(got[0].to(at::kDouble), want_a, 0.01, 0)) << got[0] / want_a;
  EXPECT_TRUE(at::allclose(got[1].to(at::kDouble), want_b, 0.01, 0)) << got[1] / want_b;
}

TEST(AdaptedLinear, HoldsItsInputAndNothingElse) {
  Adapted a(at::kFloat, at::kFloat, false, true, 0.25, 5);
  SegmentReport report;
  a.run({.training = true, .noise = 3}, &report);
  EXPECT_EQ(report.saved_bytes, static_cast<int64_t>(a.x.nbytes()));
  for (at::Tensor& t : a.adapters) t.requires_grad_(false);
  report = {};
  a.run({}, &report);
  EXPECT_EQ(report.saved_bytes, 0);
}

// Where the input is dropped the gradients are those of what was dropped: with one adapter of unit
// matrices y - x W^T is what the forward pass read, and the gradient of x by the adapter is
// dropped where that was.
TEST(AdaptedLinear, DropsTheSameInBothPasses) {
  const double p = 0.25;
  const int64_t tokens = 2500, width = 8;
  at::manual_seed(1);
  const at::Tensor x = at::ones({1, tokens, width}).requires_grad_(true);
  const at::Tensor w = at::zeros({width, width}), a = at::eye(width).requires_grad_(true),
                   b = at::eye(width).requires_grad_(true);
  Segment segment("s", Slot{.name = "in"});
  segment.add(adapted_linear_stage({}, {{0, 1, p}}));
  segment.finish();
  const at::Tensor y = segment(x, {w, a, b}, {.training = true, .noise = 3});
  EXPECT_NEAR((y == 0).to(at::kFloat).mean().item<double>(), p, 4 * std::sqrt(p * (1 - p) / 2e4));
  const auto g = torch::autograd::grad({y}, {x, a, b}, {at::ones_like(y)});
  EXPECT_TRUE(at::allclose(g[0], y));
  const at::Tensor sums = y.sum({0, 1});
  EXPECT_TRUE(at::allclose(g[1], sums.expand({width, width}), 1e-4, 1e-2));
  EXPECT_TRUE(at::allclose(g[2], sums.expand({width, width}), 1e-4, 1e-2));
  EXPECT_TRUE(at::equal(segment(x, {w, a, b}, {}), x));  // nothing is dropped where none trains
}

}  // namespace
}  // namespace compact
