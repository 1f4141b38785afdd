// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace compact {
namespace {

TEST(Dropout, ZeroesThePartItSaysAndKeepsTheMean) {
  constexpr int64_t kCount = 1 << 20;
  for (const double p : {0.1, 0.5, 0.9}) {
    const at::Tensor x = at::ones({kCount});
    const at::Tensor y = dropped(x, p, 9);
    const double zeros = y.eq(0).sum().item<double>();
    EXPECT_NEAR(zeros / kCount, p, 5 * std::sqrt(p * (1 - p) / kCount) + 1.0 / 65536);
    // All others are the same, and the mean is theirs by the part that is exact in 2^-16.
    const double kept = 65536.0 / (65536 - std::round(p * 65536));
    EXPECT_NEAR(y.max().item<double>(), kept, 1e-6);
    EXPECT_NEAR(y.sum().item<double>(), (kCount - zeros) * kept, 1);
  }
}

TEST(Dropout, IsItsOwnAdjointInPlaceOrNot) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t count : {0, 1, 255, 256, 257, 70001}) {
      const at::Tensor x = at::rand({count}).add(1).to(type);  // 0 only where it is dropped
      const at::Tensor g = at::randn({count}).to(type), y = dropped(x, 0.25, 3);
      at::Tensor given = x.clone();
      const void* memory = given.data_ptr();
      const at::Tensor in_place = dropped(std::move(given), 0.25, 3);
      EXPECT_TRUE(in_place.equal(y));
      EXPECT_TRUE(count == 0 || in_place.data_ptr() == memory);
      const at::Tensor gx = dropped(g, 0.25, 3);
      EXPECT_TRUE(gx.eq(0).equal(y.eq(0).logical_or(g.eq(0))));
      EXPECT_TRUE(count < 100 || !dropped(x, 0.25, 4).equal(y));
    }
  }
}

TEST(Dropout, UnderAutogradTakesTheSameOfGradients) {
  const at::Tensor x = at::randn({7, 300}).requires_grad_(true), g = at::randn({7, 300});
  const at::Tensor y = autograd_dropout(x, 0.3, 5);
  EXPECT_TRUE(y.equal(dropped(x.detach().clone(), 0.3, 5)));
  torch::autograd::backward({y}, {g});
  EXPECT_TRUE(x.grad().equal(dropped(g.clone(), 0.3, 5)));
  // The same of a transposed tensor, and where nobody asks for gradients.
  EXPECT_TRUE(
      autograd_dropout(x.detach().t(), 0.3, 5).equal(dropped(x.detach().t().contiguous(), 0.3, 5)));
  EXPECT_FALSE(autograd_dropout(x.detach(), 0.3, 5).requires_grad());
}

}  // namespace
}  // namespace compact
