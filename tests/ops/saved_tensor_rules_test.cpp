// SPDX-License-Identifier: Apache-2.0
// What of saved tensors codecs may touch: what backward passes read linearly or smoothly. The
// package's tests walk the operations; here is what C++ has beside.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
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

TEST(SavedTensorRules, ComparedAndDividedValuesAreKept) {
  const Body bodies[] = {
      [](const at::Tensor& y) { return y.amax(1).sum(); },
      [](const at::Tensor& y) { return y.max(); },
      [](const at::Tensor& y) { return (y.square() + 1e-6).sqrt().sum(); },
      [](const at::Tensor& y) { return (y.square() + 1e-3).reciprocal().sum(); },
      [](const at::Tensor& y) { return (1 - (10 * y).sigmoid() + 1e-8).log().sum(); },
      [](const at::Tensor& y) {
        return at::binary_cross_entropy((10 * y).sigmoid(), at::ones_like(y));
      },
      [](const at::Tensor& y) { return y.clamp(-1, 1).sum(); },
      [](const at::Tensor& y) { return at::selu(y).sum(); },
      [](const at::Tensor& y) { return at::pow(2, y).sum(); },
      [](const at::Tensor& y) { return y.clone().sqrt_().nan_to_num(0).sum(); },
  };
  for (size_t i = 0; i < std::size(bodies); ++i) {
    SavedTensorReport report;
    const at::Tensor want = gradient(bodies[i], kKeep);
    EXPECT_TRUE(at::allclose(gradient(bodies[i], quantized(4), &report), want, 0, 0, true)) << i;
    int64_t kept = 0;
    for (const auto& [name, bytes] : report.exact_for()) kept += bytes;
    EXPECT_GT(kept, 0) << i;
  }
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

TEST(SavedTensorRules, NotFiniteValuesComeBack) {
  for (const float value : {INFINITY, -INFINITY, NAN}) {
    at::Tensor factor = normal_tensor({32, 64}, 2);
    factor[3][5] = value;
    const at::Tensor got =
        gradient([&](const at::Tensor& y) { return (y * factor).sum(); }, quantized(4));
    EXPECT_TRUE(at::allclose(got, factor, 0, 0, true)) << value;
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

// A preset that names roles holds maps of plain convolutions as it does those of segments.
TEST(SavedTensorRules, PoolHoldsMeansOfWhatConvolutionsRead) {
  const at::Tensor image = normal_tensor({2, 3, 16, 16}, 1),
                   w1 = normal_tensor({4, 3, 3, 3}, 2).requires_grad_(),
                   w2 = normal_tensor({4, 4, 3, 3}, 3).requires_grad_();
  const auto pass = [&](const Policy& policy, bool means, SavedTensorReport* report) {
    SavedTensorScope scope(policy, {.least_elements = 16});
    const at::Tensor h =
        at::batch_norm(at::conv2d(image, w1, {}, 1, 1), {}, {}, {}, {}, true, 0.1, 1e-5, false)
            .relu();
    at::Tensor y = at::conv2d(h, w2, {}, 1, 1);
    if (means) {
      const at::Tensor pooled = at::upsample_nearest2d(at::avg_pool2d(h.detach(), 2), {16, 16});
      y = y.detach() + at::conv2d(pooled, w2, {}, 1, 1) -
          at::conv2d(pooled, w2.detach(), {}, 1, 1) + at::conv2d(h, w2.detach(), {}, 1, 1) -
          at::conv2d(h, w2.detach(), {}, 1, 1).detach();
    }
    *report = scope.report();
    torch::autograd::backward({(y * normal_tensor({2, 4, 16, 16}, 4)).sum()}, {});
    std::vector<at::Tensor> all = {w1.grad(), w2.grad()};
    w1.mutable_grad().reset();
    w2.mutable_grad().reset();
    return all;
  };
  SavedTensorReport report, plain;
  const auto want = pass(kKeep, true, &plain), got = pass(Policy::preset("pool"), false, &report);
  EXPECT_TRUE(at::equal(got[0], want[0]));  // no other gradient changes
  EXPECT_TRUE(at::allclose(got[1], want[1], 1e-4, 1e-4));
  std::vector<std::pair<std::string, int64_t>> held;
  for (const SavedTensor& t : report.tensors) {
    if (!t.parameter && t.sizes.size() == 4) held.emplace_back(t.treatment.text(), t.stored);
  }
  const int64_t map = 2 * 4 * 16 * 16 * 4;
  EXPECT_EQ(held, (std::vector<std::pair<std::string, int64_t>>{{"keep", 2 * 3 * 16 * 16 * 4},
                                                                {"keep", map},
                                                                {"mask:of=sign", map / 32},
                                                                {"pool:size=2", map / 4}}));
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
