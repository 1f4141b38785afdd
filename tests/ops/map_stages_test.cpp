// SPDX-License-Identifier: Apache-2.0
// Convolutions whose inputs are held as means over windows.
#include "compact/ops/stages/map_stages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "tests/ops/bound_segment.h"

namespace compact {
namespace {

at::Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

struct Gradients {
  at::Tensor x, weight;
};

// Gradients of sum(conv(x) * g), with x held as `treatment` says.
Gradients stage_gradients(const std::string& treatment, const at::Tensor& input,
                          const at::Tensor& weight, int64_t stride, const at::Tensor& g) {
  Parameter w{.name = "w", .weight = weight.clone().requires_grad_(true)};
  BoundSegment segment("one", Slot{.name = "input", .treatment = Treatment::parse(treatment)});
  segment.add(conv_stage(weight.size(2), stride, weight.size(2) / 2), {&w});
  segment.finish();
  const at::Tensor x =
      input.contiguous(at::MemoryFormat::ChannelsLast).detach().requires_grad_(true);
  torch::autograd::backward({(segment(x) * g).sum()}, {});
  return {x.grad(), w.weight.grad()};
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

// A map that is constant over windows: no error, by products of means as by the whole map.
TEST(MapStages, ConstantWindowsHaveTheirExactGradient) {
  for (const int64_t k : {1, 3}) {
    const at::Tensor x = normal({3, 8, 6, 6}, 1).repeat_interleave(2, 2).repeat_interleave(2, 3);
    const at::Tensor w = normal({5, 8, k, k}, 2), g = normal({3, 5, 12, 12}, 3);
    const Gradients exact = stage_gradients("keep", x, w, 1, g),
                    pooled = stage_gradients("pool:size=2", x, w, 1, g);
    EXPECT_TRUE(pooled.x.equal(exact.x)) << k;
    EXPECT_LT(relative(pooled.weight, exact.weight), 1e-5) << k;
  }
}

// The product of means is the product with the map that is constant over windows, also where edges
// cut windows off.
TEST(MapStages, ProductsOfMeansAreThoseOfTheSpreadMap) {
  for (const int64_t size : {2, 3, 4}) {
    const at::Tensor x = normal({2, 6, 9, 7}, 4), w = normal({5, 6, 1, 1}, 5),
                     g = normal({2, 5, 9, 7}, 6);
    const std::string treatment = cat("pool:size=", size);
    const at::Tensor spread = make_codec(treatment)->encode(x, 0).restore();
    const Gradients pooled = stage_gradients(treatment, x, w, 1, g);
    EXPECT_LT(relative(pooled.weight, stage_gradients("keep", spread, w, 1, g).weight), 1e-5)
        << size;
    EXPECT_TRUE(pooled.x.equal(stage_gradients("keep", x, w, 1, g).x)) << size;
  }
}

// Theory: pooling takes the part of x within windows out of gy^T x. Where x is white that is
// 1 - 1/k^2 of its variance, and with independent gy as much of the gradient's square; where x is
// the same over windows but for noise of relative variance v, v (1 - 1/k^2) / (1 + v). Mean of 40
// draws of 4,096 entries each, of which the standard error is below 1 %: five of them.
TEST(MapStages, ErrorOfPooledGradientsIsThatOfTheory) {
  const int64_t k = 2;
  for (const double v : {1e9, 1.0, 0.25}) {  // 1e9: white
    double error = 0;
    constexpr int kDraws = 40;
    for (uint64_t draw = 0; draw < kDraws; ++draw) {
      at::Tensor x = normal({2, 64, 12, 12}, 100 + draw);
      const at::Tensor base =
          normal({2, 64, 6, 6}, 300 + draw).repeat_interleave(k, 2).repeat_interleave(k, 3);
      if (v < 1e9) x = base + x * std::sqrt(v);
      const at::Tensor w = at::zeros({64, 64, 1, 1}), g = normal({2, 64, 12, 12}, 500 + draw);
      const at::Tensor exact = stage_gradients("keep", x, w, 1, g).weight;
      const double e = relative(stage_gradients("pool:size=2", x, w, 1, g).weight, exact);
      error += e * e / kDraws;
    }
    const double within = 1 - 1.0 / static_cast<double>(k * k);
    const double theory = v < 1e9 ? v * within / (1 + v) : within;
    EXPECT_NEAR(error / theory, 1, 0.05) << v;
  }
}

}  // namespace
}  // namespace compact
