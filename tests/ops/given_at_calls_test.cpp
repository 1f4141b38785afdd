// SPDX-License-Identifier: Apache-2.0
// Stages that are given more at every call than models of ours give them: a product's weights one
// by one, tables of rotary positions, another type for products.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compact/base/check.h"
#include "compact/ops/segments/segment.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

at::Tensor leaf(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(true); }

std::vector<at::Tensor> gradients(const at::Tensor& y, const std::vector<at::Tensor>& of) {
  return torch::autograd::grad({y}, of, {at::sin(at::arange(y.numel()).view(y.sizes()))});
}

TEST(GivenAtCalls, AProductOfSeveralWeightsIsTheirsOneByOne) {
  for (const bool bias : {false, true}) {
    at::manual_seed(1);
    const at::Tensor x = leaf({2, 5, 6});
    const std::vector<at::Tensor> w = {leaf({4, 6}), leaf({3, 6}), leaf({2, 6})},
                                  b = {leaf({4}), leaf({3}), leaf({2})};
    Segment segment("s", Slot{.name = "in"});
    segment.add(linear_stage({.bias = bias, .parts = 3}));
    segment.finish();
    std::vector<Weight> weights(w.begin(), w.end());
    std::vector<at::Tensor> all = {x, w[0], w[1], w[2]}, parts;
    if (bias) {
      weights.insert(weights.end(), b.begin(), b.end());
      all.insert(all.end(), b.begin(), b.end());
    }
    for (size_t i = 0; i < 3; ++i) {
      parts.push_back(at::linear(x, w[i], bias ? std::optional(b[i]) : std::nullopt));
    }
    const at::Tensor y = segment(x, weights), expected = at::cat(parts, -1);
    EXPECT_TRUE(at::allclose(y, expected, 1e-6, 1e-6));
    const auto got = gradients(y, all), want = gradients(expected, all);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::allclose(got[i], want[i], 1e-5, 1e-5)) << i;
      EXPECT_EQ(got[i].sizes(), all[i].sizes());
    }
  }
}

TEST(GivenAtCalls, TheInputIsHeldWhileOneOfSeveralWeightsIsTrained) {
  for (const int trained : {0, 1, 2, 3}) {  // 3: none
    const at::Tensor x = leaf({2, 5, 6});
    std::vector<at::Tensor> w = {at::randn({4, 6}), at::randn({3, 6}), at::randn({2, 6})};
    if (trained < 3) w[static_cast<size_t>(trained)].requires_grad_(true);
    Segment segment("s", Slot{.name = "in"});
    segment.add(linear_stage({.parts = 3}));
    segment.finish();
    SegmentReport report;
    const at::Tensor y = segment(x, {w.begin(), w.end()}, {}, &report);
    EXPECT_EQ(report.saved_bytes, trained < 3 ? 2 * 5 * 6 * 4 : 0);
    y.sum().backward();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(w[static_cast<size_t>(i)].grad().defined(), i == trained);
    }
    EXPECT_TRUE(at::allclose(x.grad(), at::cat(w).sum(0).detach().expand({2, 5, 6}), 1e-5, 1e-5));
  }
}

// Whatever the tables of a stage are, those of a call in their place give the same bits.
TEST(GivenAtCalls, RotaryTables) {
  constexpr int64_t kHeads = 3, kDim = 8, kTokens = 7;
  auto tables =
      std::make_shared<RopeTables>(RopeTables::make(RopeConfig{}, kDim, 32, 32, at::kCPU));
  const auto run = [&](const std::shared_ptr<const RopeTables>& own, const SegmentPass& pass,
                       const at::Tensor& x) {
    Segment segment("s", Slot{.name = "in"});
    segment.add(rope_stage(own, kHeads, kDim));
    segment.finish();
    return segment(x, {}, pass);
  };
  const at::Tensor x = leaf({2, kTokens, kHeads * kDim});
  const at::Tensor expected = run(tables, {}, x);
  const SegmentPass of_sequence{.cos = tables->near.cos.narrow(0, 0, kTokens),
                                .sin = tables->near.sin.narrow(0, 0, kTokens)};
  const SegmentPass of_batch{.cos = of_sequence.cos.repeat({2, 1}),
                             .sin = of_sequence.sin.repeat({2, 1})};
  for (const SegmentPass& pass : {of_sequence, of_batch}) {
    const at::Tensor y = run(nullptr, pass, x);
    EXPECT_TRUE(at::equal(y, expected));
    EXPECT_TRUE(at::equal(gradients(y, {x})[0], gradients(run(tables, {}, x), {x})[0]));
  }
  // The second sequence at other places.
  SegmentPass moved = of_batch;
  moved.cos = at::cat({of_sequence.cos, tables->near.cos.narrow(0, 4, kTokens)});
  moved.sin = at::cat({of_sequence.sin, tables->near.sin.narrow(0, 4, kTokens)});
  const at::Tensor y = run(nullptr, moved, x);
  EXPECT_TRUE(at::equal(y[0], expected[0]));
  EXPECT_FALSE(at::allclose(y[1], expected[1]));
  EXPECT_THROW(run(nullptr, {}, x), InputError);
}

TEST(GivenAtCalls, TablesChangedInPlaceAreAnError) {
  const at::Tensor x = leaf({1, 4, 8});
  const SegmentPass pass{.cos = at::ones({4, 4}), .sin = at::zeros({4, 4})};
  Segment segment("s", Slot{.name = "in"});
  segment.add(rope_stage(nullptr, 1, 8));
  segment.finish();
  const at::Tensor y = segment(x, {}, pass);
  pass.cos.mul_(2);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

// Sums stay in f32 while products are made in bf16: what comes out is nearer to f32 than with bf16
// throughout, and gradients are as near.
TEST(GivenAtCalls, ProductsInAnotherType) {
  at::manual_seed(2);
  const at::Tensor x = leaf({4, 32, 64}), norm = leaf({64}), w = leaf({64, 64});
  const auto run = [&](at::ScalarType sums, at::ScalarType products) {
    Segment segment("s", Slot{.name = "in"});
    segment.add(rms_norm_stage(1e-6), Slot{.name = "norm"});
    segment.add(linear_stage({}), {});
    segment.add_residual(0);
    segment.finish();
    SegmentPass pass;
    if (sums != products) pass.products = products;
    const at::Tensor y = segment(x.to(sums), {Weight(norm.to(sums)), Weight(w.to(products))}, pass);
    EXPECT_EQ(y.scalar_type(), sums);
    std::vector<at::Tensor> all = gradients(y.to(at::kFloat), {x, norm, w});
    all.push_back(y.detach().to(at::kFloat));
    return all;
  };
  const auto exact = run(at::kFloat, at::kFloat), mixed = run(at::kFloat, at::kBFloat16),
             low = run(at::kBFloat16, at::kBFloat16);
  for (const auto& [i, part] : {std::pair(size_t{0}, 1.3), std::pair(size_t{3}, 0.9)}) {
    const double of_mixed = (mixed[i] - exact[i]).norm().item<double>(),
                 of_low = (low[i] - exact[i]).norm().item<double>();
    EXPECT_GT(of_mixed, 0);
    EXPECT_LT(of_mixed, part * of_low) << i;
  }
  // Without it types that differ are refused as before.
  Segment segment("s", Slot{.name = "in"});
  segment.add(linear_stage({}), {});
  segment.add_residual(0);
  segment.finish();
  EXPECT_THROW(segment(x, {Weight(w.to(at::kBFloat16))}), InputError);
}

}  // namespace
}  // namespace compact
