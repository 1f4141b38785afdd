// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/fork.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compact/ops/autograd/autograd.h"
#include "compact/ops/memory/memory.h"
#include "tests/ops/block.h"

namespace compact {
namespace {

using torch::autograd::backward;
using torch::autograd::grad;

at::Tensor fork_leaf(at::ScalarType type, int64_t rows = 7) {
  return noise({rows, 5}, "leaf", type).requires_grad_(true);
}

// Gradients of two products that read one matrix.
at::Tensor gradient(const at::Tensor& w, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = noise({5, 3}, "x", w.scalar_type()), y = noise({7, 5}, "y", w.scalar_type());
  return grad({a.mm(x).sum() + (b * y).sum()}, {w})[0];
}

TEST(Fork, GivesTheBitsOfTheEnginesSum) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor w = fork_leaf(type);
    const auto [a, b] = fork(w);
    EXPECT_TRUE(same_bits(a, w));
    EXPECT_EQ(a.const_data_ptr(), w.const_data_ptr());
    EXPECT_EQ(b.const_data_ptr(), w.const_data_ptr());
    const at::Tensor want = gradient(w, w, w);
    EXPECT_TRUE(same_bits(gradient(w, a, b), want));
  }
}

TEST(Fork, AddsInPlace) {
  install_counting_allocator();
  constexpr int64_t kRows = 4096;
  const at::Tensor w = at::ones({kRows, 64}).requires_grad_(true);
  const auto bytes = static_cast<int64_t>(w.nbytes());
  const at::Tensor x = at::ones({64, 1}), index = at::ones({1}, at::kLong);
  const auto [a, b] = fork(w);
  const at::Tensor loss = a.mm(x).sum() + at::embedding(b, index).sum();
  const int64_t before = live_bytes(at::kCPU);
  reset_peak(at::kCPU);
  backward({loss}, {});
  EXPECT_LT(peak_bytes(at::kCPU) - before, 2 * bytes + bytes / 2);
  EXPECT_TRUE(w.grad().defined());
}

TEST(Fork, OneGradientMayBeMissing) {
  const at::Tensor w = fork_leaf(at::kFloat), y = noise({7, 5}, "y", at::kFloat);
  for (const bool first : {false, true}) {
    const auto [a, b] = fork(w);
    EXPECT_TRUE(same_bits(grad({((first ? a : b) * y).sum()}, {w})[0], y));
  }
}

TEST(Fork, LeavesAloneWhatOthersHold) {
  const at::Tensor w = fork_leaf(at::kFloat), y = noise({7, 5}, "y", at::kFloat);
  // One gradient for both: the sum hands on what it was given.
  {
    const auto [a, b] = fork(w);
    const at::Tensor given = y.clone();
    EXPECT_TRUE(same_bits(grad({a + b}, {w}, {given})[0], y * 2));
    EXPECT_TRUE(same_bits(given, y));
  }
  // One is held, first or second.
  for (const bool swap : {false, true}) {
    const auto [a, b] = fork(w);
    const at::Tensor held = y.clone();
    const auto got = grad({swap ? b : a, ((swap ? a : b) * y).sum()}, {w}, {held, at::ones({})});
    EXPECT_TRUE(same_bits(got[0], y + y));
    EXPECT_TRUE(same_bits(held, y));
  }
  // Both are held, or cannot be written to.
  {
    const auto [a, b] = fork(w);
    const at::Tensor held = y.clone(), row = at::ones({1, 1}).expand({7, 5});
    EXPECT_TRUE(same_bits(grad({a, b}, {w}, {held, row})[0], y + 1));
    EXPECT_TRUE(same_bits(held, y));
    EXPECT_TRUE((row == 1).all().item<bool>());
  }
  // The gradients of the views are asked for beside their sum.
  {
    const auto [a, b] = fork(w);
    const auto got = grad({(a * y).sum() + (b * (y + 1)).sum()}, {a, b, w});
    EXPECT_TRUE(same_bits(got[0], y));
    EXPECT_TRUE(same_bits(got[1], y + 1));
    EXPECT_TRUE(same_bits(got[2], y + (y + 1)));
  }
}

TEST(Fork, RunsBackwardAgain) {
  const at::Tensor w = fork_leaf(at::kFloat), y = noise({7, 5}, "y", at::kFloat);
  const auto [a, b] = fork(w);
  const at::Tensor loss = (a * y).sum() + (b * b).sum();
  const at::Tensor once = grad({loss}, {w}, {}, /*retain_graph=*/true)[0];
  EXPECT_TRUE(same_bits(grad({loss}, {w}, {}, true)[0], once));
  backward({loss}, {}, true);
  backward({loss}, {});
  EXPECT_TRUE(same_bits(w.grad(), once * 2));
}

TEST(Fork, TwiceOfOneTensorAndOfForks) {
  const at::Tensor w = fork_leaf(at::kFloat);
  const auto [a, b] = fork(w);
  const auto [c, d] = fork(w);
  const auto [e, f] = fork(a);
  backward({a.sum() + b.sum() + c.sum() + d.sum() + e.sum() + f.sum()}, {});
  EXPECT_TRUE((w.grad() == 6).all().item<bool>());
}

TEST(Fork, NothingToRecord) {
  const at::Tensor w = fork_leaf(at::kFloat), plain = noise({2, 2}, "plain", at::kFloat);
  EXPECT_FALSE(fork(plain).first.requires_grad());
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(fork(w).first.is_same(w));
  }
  const at::Tensor none = at::empty({0, 5}).requires_grad_(true);
  const auto [a, b] = fork(none);
  backward({a.sum() + b.sum()}, {});
  EXPECT_EQ(none.grad().numel(), 0);
}

// A change in place between the passes is seen through the views as through the tensor.
TEST(Fork, SharesTheVersionCounter) {
  const at::Tensor w = fork_leaf(at::kFloat);
  const auto [a, b] = fork(w);
  const at::Tensor loss = (a * a).sum() + b.sum();
  {
    const at::NoGradGuard no_grad;
    w.add_(1);
  }
  EXPECT_THROW(backward({loss}, {}), std::exception);
}

}  // namespace
}  // namespace compact
