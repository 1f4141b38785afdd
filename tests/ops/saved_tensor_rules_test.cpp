// SPDX-License-Identifier: Apache-2.0
// The saved tensors that codecs may round: those that backward passes read linearly or smoothly.
// The package's tests walk the operations; these test the rest, in C++.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>

#include "compact/base/check.h"
#include "compact/ops/scopes/saved_tensors.h"
#include "tests/ops/saved_tensors.h"

namespace compact {
namespace {

using Body = std::function<at::Tensor(const at::Tensor&)>;

// The gradient of what `body` makes of a tensor, with what is saved held as the policy says.
at::Tensor gradient(const Body& body, const Policy& policy, SavedTensorReport* report = nullptr,
                    bool lossless = true) {
  const at::Tensor x = normal_tensor({32, 64}, 1).requires_grad_();
  SavedTensorScope scope(policy, {.least_elements = 16, .lossless = lossless});
  const at::Tensor y = body(x * 1.0);
  if (report) *report = scope.report();
  torch::autograd::backward({y}, {});
  return x.grad();
}

// The sums of its weights are made again from rounded queries and keys.
TEST(SavedTensorRules, AttentionSumsAgree) {
  const auto attention = [](const at::Tensor& y) {
    const at::Tensor q = 2 * y.view({1, 2, 16, 64}), k = q.flip(2);
    return (at::scaled_dot_product_attention(q, k, q.flip(3)) * normal_tensor({64}, 2)).sum();
  };
  const at::Tensor want = gradient(attention, kKeep);
  const auto error = [&](int bits) {
    SavedTensorReport report;
    const at::Tensor got = gradient(attention, quantized(bits), &report);
    EXPECT_EQ(std::ranges::count(report.tensors, "recompute",
                                 [](const SavedTensor& t) { return t.treatment.text(); }),
              2);
    return ((got - want).norm() / want.norm()).item<double>();
  };
  EXPECT_LT(error(4), 0.75);
  EXPECT_LT(error(8), 0.06);
}

// In place the result lies where the argument did.
TEST(SavedTensorRules, InPlaceFormsAreTheSameOperations) {
  const struct {
    Body body;
    const char* treatment;
  } cases[] = {
      {[](const at::Tensor& y) { return (y * 1.0).relu_().sum(); },
       "quantize:bits=4,levels=positive"},
      {[](at::Tensor y) { return at::leaky_relu_(y).sum(); }, "mask:of=sign"},
      {[](at::Tensor y) { return at::silu_(y).sum(); }, "quantize:bits=4"},
      {[](const at::Tensor& y) { return (y * 1.0).tanh_().sum(); }, "keep"},
      {[](const at::Tensor& y) { return (y * 1.0).exp_().sum(); }, "keep"},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    SavedTensorReport report;
    gradient(cases[i].body, quantized(4), &report);
    ASSERT_EQ(report.tensors.size(), 1u) << i;
    EXPECT_EQ(report.tensors[0].treatment.text(), cases[i].treatment) << i;
  }
}

// Signs do for a leaky ReLU and shapes for pooling, whatever else is held.
TEST(SavedTensorRules, SignsAndShapesChangeNoBit) {
  const Body bodies[] = {
      [](const at::Tensor& y) { return at::leaky_relu(y, 0.2).sum(); },
      [](const at::Tensor& y) {
        return at::avg_pool2d(y.view({2, 4, 16, 16}), 2).sum();
      },
      [](const at::Tensor& y) {
        return at::adaptive_avg_pool2d(y.view({2, 4, 16, 16}), {3, 3}).sum();
      },
      [](const at::Tensor& y) {
        return at::max_pool2d(y.view({2, 4, 16, 16}), 2).sum();
      },
      [](const at::Tensor& y) {
        return y.gather(1, at::arange(64).remainder(7).expand({32, 64}).contiguous()).sum();
      },
  };
  for (size_t i = 0; i < std::size(bodies); ++i) {
    const at::Tensor want = gradient(bodies[i], kKeep, nullptr, false);
    for (const bool lossless : {false, true}) {
      SavedTensorReport report;
      EXPECT_TRUE(at::equal(gradient(bodies[i], quantized(2), &report, lossless), want)) << i;
      const auto values = std::ranges::find(report.tensors, at::kFloat, &SavedTensor::type);
      ASSERT_NE(values, report.tensors.end()) << i;
      EXPECT_EQ(values->treatment.text(), "mask:of=sign") << i;
      EXPECT_EQ(values->stored * 32, values->bytes) << i;
    }
  }
}

// Functions and scopes of others say nothing by their names.
struct Square : torch::autograd::Function<Square> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    RECORD_FUNCTION("leaky_relu", std::vector<c10::IValue>({x}));
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& g) {
    return {2 * g[0] * context->get_saved_variables()[0]};
  }
};

TEST(SavedTensorRules, NamesOfOthersSayNothing) {
  const Body body = [](const at::Tensor& y) {
    RECORD_FUNCTION("relu", std::vector<c10::IValue>({y}));
    return Square::apply(y).sum();
  };
  SavedTensorReport report;
  EXPECT_TRUE(at::equal(gradient(body, quantized(2), &report), gradient(body, kKeep)));
  EXPECT_EQ(report.exact_for().size(), 1u);
}

// Signs, means and the tensor itself become the tensor, counted once.
TEST(SavedTensorRules, WhatIsHeldWholeIsHeldOnce) {
  const at::Tensor w = normal_tensor({4, 4, 3, 3}, 3).requires_grad_();
  SavedTensorReport report;
  const Body body = [&](const at::Tensor& y) {
    const at::Tensor h = y.view({2, 4, 16, 16}).relu();
    return at::conv2d(h, w).sum() + h.exp().log1p().sum() + h.abs().sum();
  };
  const at::Tensor want = gradient(body, kKeep), by_w = w.grad().clone();
  w.mutable_grad().reset();
  EXPECT_TRUE(at::equal(
      gradient(body, Policy::parse("slot * = pool\nslot role:signs = mask:of=sign\n", "test"),
               &report),
      want));
  EXPECT_TRUE(at::equal(w.grad(), by_w));
  const int64_t map = 2 * 4 * 16 * 16 * 4;
  EXPECT_EQ(report.stored(), 2 * map);  // what the ReLU and exp give
}

}  // namespace
}  // namespace compact
