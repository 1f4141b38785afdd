// SPDX-License-Identifier: Apache-2.0
// Convolutions of bf16 tensors made of f32 ones: values, layouts, memory, and who takes them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "compact/base/check.h"
#include "compact/ops/cpu/bf16_products.h"
#include "compact/ops/memory/memory.h"

namespace compact {
namespace {

using at::Tensor;

class Bf16Convolutions : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  Bf16Convolutions() { at::manual_seed(5); }
  ~Bf16Convolutions() override { set_bf16_products(Bf16Products::kNative); }
};

struct Case {
  std::string name;
  std::vector<int64_t> x, w;
  Convolution how;
  bool channels_last = false;

  Tensor random(const std::vector<int64_t>& sizes) const {
    const Tensor t = at::randn(sizes).to(at::kBFloat16);
    return channels_last ? t.contiguous(at::MemoryFormat::ChannelsLast) : t;
  }
  Tensor run(const Tensor& map, const Tensor& weight, const Tensor& bias) const {
    return at::convolution(map, weight, bias, how.stride, how.padding, how.dilation, how.transposed,
                           how.output_padding, how.groups);
  }
  std::array<Tensor, 3> back(const Tensor& gy, const Tensor& map, const Tensor& weight) const {
    const int64_t out = how.transposed ? weight.size(1) * how.groups : weight.size(0);
    const auto [a, b, c] = at::convolution_backward(
        gy, map, weight, at::IntArrayRef(out), how.stride, how.padding, how.dilation,
        how.transposed, how.output_padding, how.groups, {true, true, true});
    return {a, b, c};
  }
};

Convolution window(std::vector<int64_t> stride, std::vector<int64_t> padding,
                   std::vector<int64_t> dilation, int64_t groups = 1) {
  std::vector<int64_t> none(stride.size(), 0);
  return {std::move(stride), std::move(padding), std::move(dilation), false, none, groups};
}
Convolution transposed(Convolution how, std::vector<int64_t> output_padding) {
  how.transposed = true;
  how.output_padding = std::move(output_padding);
  return how;
}

// The last two are converted in two parts and in five.
std::vector<Case> cases() {
  return {
      {"one value", {1, 1, 1, 1}, {1, 1, 1, 1}, window({1, 1}, {0, 0}, {1, 1})},
      {"1-d", {3, 5, 33}, {7, 5, 4}, window({2}, {1}, {3})},
      {"3-d", {2, 4, 6, 7, 5}, {6, 2, 3, 2, 3}, window({1, 2, 1}, {1, 0, 1}, {1, 1, 2}, 2)},
      {"3x3", {4, 16, 14, 14}, {32, 16, 3, 3}, window({1, 1}, {1, 1}, {1, 1})},
      {"3x3 channels last", {4, 16, 14, 14}, {32, 16, 3, 3}, window({1, 1}, {1, 1}, {1, 1}), true},
      {"stride 2", {3, 3, 31, 30}, {8, 3, 7, 7}, window({2, 2}, {3, 3}, {1, 1}), true},
      {"one value for both", {3, 8, 9, 9}, {8, 8, 1, 1}, window({2}, {0}, {1})},
      {"depthwise", {2, 12, 10, 11}, {12, 1, 3, 3}, window({1, 1}, {1, 1}, {1, 1}, 12)},
      {"groups, dilation", {2, 8, 12, 9}, {4, 2, 3, 3}, window({1, 1}, {2, 2}, {2, 2}, 4), true},
      {"transposed",
       {2, 6, 7, 8},
       {6, 4, 3, 3},
       transposed(window({2, 2}, {1, 1}, {1, 1}, 2), {1, 1})},
      {"two parts", {5, 8, 200, 200}, {4, 8, 3, 3}, window({1, 1}, {1, 1}, {1, 1}), true},
      {"a part a sample", {5, 4, 300, 520}, {2, 4, 2, 2}, window({2, 1}, {0, 0}, {1, 1})},
  };
}
int64_t converted_at_once(const Case& c) {
  return c.name == "two parts" ? 3 : c.name == "a part a sample" ? 1 : c.x[0];
}

// Each number at most one rounding to 8 bits from the sum in f64, beside what sums in f32 of so
// large terms may be off.
void expect_one_rounding(const Tensor& got, const Tensor& exact, const Tensor& terms,
                         const std::string& what) {
  ASSERT_EQ(got.sizes(), exact.sizes()) << what;
  ASSERT_EQ(got.scalar_type(), at::kBFloat16) << what;
  const Tensor bound = exact.abs() * std::ldexp(1.0, -8) + terms * 4e-6 + 1e-30;
  EXPECT_LE(((got.to(at::kDouble) - exact).abs() - bound).max().item<double>(), 0) << what;
}

TEST_F(Bf16Convolutions, AreSumsInF32RoundedOnce) {
  set_bf16_products(Bf16Products::kConverted);
  for (const Case& c : cases()) {
    const Tensor x = c.random(c.x), w = c.random(c.w);
    const Tensor bias =
        at::randn({c.how.transposed ? c.w[1] * c.how.groups : c.w[0]}).to(at::kBFloat16);
    const Tensor y = c.run(x, w, bias);
    const auto f64 = [](const Tensor& t) { return t.to(at::kDouble); };
    expect_one_rounding(y, c.run(f64(x), f64(w), f64(bias)),
                        c.run(f64(x).abs(), f64(w).abs(), f64(bias).abs()), c.name);
    const Tensor gy = c.random(y.sizes().vec());
    const auto got = c.back(gy, x, w), exact = c.back(f64(gy), f64(x), f64(w)),
               terms = c.back(f64(gy).abs(), f64(x).abs(), f64(w).abs());
    for (int i = 0; i < 3; ++i) {
      expect_one_rounding(got[i], exact[i], terms[i], cat(c.name, " gradient ", i));
    }
  }
}

// The same bits as f32 convolutions of so many samples, whose gradients of weights are summed in
// f32, and the same layouts.
TEST_F(Bf16Convolutions, AreThoseOfF32BySamples) {
  set_bf16_products(Bf16Products::kConverted);
  for (const Case& c : cases()) {
    const Tensor x = c.random(c.x), w = c.random(c.w);
    const auto f32 = [](const Tensor& t) { return t.to(at::kFloat); };
    const Tensor y = c.run(x, w, {}), gy = c.random(y.sizes().vec());
    const auto got = c.back(gy, x, w);
    std::vector<Tensor> outs, gxs;
    Tensor gw, gbias;
    const int64_t most = converted_at_once(c);
    for (int64_t i = 0; i < c.x[0]; i += most) {
      const int64_t size = std::min(most, c.x[0] - i);
      const Tensor part = f32(x.narrow(0, i, size)), g = f32(gy.narrow(0, i, size));
      outs.push_back(c.run(part, f32(w), {}));
      const auto back = c.back(g, part, f32(w));
      gxs.push_back(back[0]);
      gw = gw.defined() ? gw + back[1] : back[1];
    }
    const auto bf16 = [](const Tensor& t) { return t.to(at::kBFloat16); };
    EXPECT_TRUE(at::equal(y, bf16(at::cat(outs)))) << c.name;
    EXPECT_TRUE(at::equal(got[0], bf16(at::cat(gxs)))) << c.name;
    EXPECT_TRUE(at::equal(got[1], bf16(gw))) << c.name;
    const Tensor whole = c.run(f32(x), f32(w), {});
    EXPECT_EQ(y.strides(), whole.strides()) << c.name;
    EXPECT_EQ(got[0].strides(), c.back(f32(gy), f32(x), f32(w))[0].strides()) << c.name;
  }
}

// Every operation of LibTorch that convolves; with conversion off, its own again.
TEST_F(Bf16Convolutions, ServeEveryOperationOfLibTorch) {
  const Case c{"", {2, 4, 9, 9}, {6, 4, 3, 3}, window({1, 1}, {1, 1}, {1, 1})};
  const Tensor x = c.random(c.x), w = c.random(c.w), bias = c.random({6});
  const Tensor before = at::conv2d(x, w, bias, 1, 1);
  set_bf16_products(Bf16Products::kConverted);
  const Tensor y = converted_convolution(x, w, bias, c.how);
  EXPECT_TRUE(at::equal(at::conv2d(x, w, bias, 1, 1), y));
  EXPECT_TRUE(at::equal(at::conv2d(x, w, bias, 1, "same"), y));
  EXPECT_TRUE(at::equal(at::conv2d(x[0], w, bias, 1, 1), y[0]));
  EXPECT_TRUE(at::equal(at::_convolution(x, w, bias, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1,
                                         false, false, false, false),
                        y));
  const auto f32 = [](const Tensor& t) { return t.to(at::kFloat); };
  EXPECT_TRUE(
      at::equal(at::conv_transpose2d(x, w.transpose(0, 1), {}, 2),
                at::conv_transpose2d(f32(x), f32(w).transpose(0, 1), {}, 2).to(at::kBFloat16)));
  const Tensor line = c.random({2, 4, 20}), of_line = c.random({3, 4, 5});
  EXPECT_TRUE(
      at::equal(at::conv1d(line, of_line), at::conv1d(f32(line), f32(of_line)).to(at::kBFloat16)));
  const Tensor map = x.clone().requires_grad_(), leaf = w.clone().requires_grad_(),
               added = bias.clone().requires_grad_();
  at::conv2d(map, leaf, added, 1, 1).sum().backward();
  const auto [gx, gw, gbias] =
      converted_convolution_backward(at::ones_like(y), x, w, c.how, {true, true, true});
  EXPECT_TRUE(at::equal(map.grad(), gx));
  EXPECT_TRUE(at::equal(leaf.grad(), gw));
  EXPECT_TRUE(at::equal(added.grad(), gbias));
  const auto [none, only, no_bias] =
      converted_convolution_backward(at::ones_like(y), x, w, c.how, {false, true, false});
  EXPECT_FALSE(none.defined() || no_bias.defined());
  EXPECT_TRUE(at::equal(only, gw));
  // Errors are LibTorch's, empty batches and other types its own.
  EXPECT_THROW(at::conv2d(x, w.narrow(1, 0, 3)), c10::Error);
  EXPECT_THROW(at::conv2d(x, f32(w)), c10::Error);
  EXPECT_THROW(at::conv2d(x, w, f32(bias)), c10::Error);
  EXPECT_THROW(at::conv2d(x.narrow(2, 0, 2), w), c10::Error);
  EXPECT_EQ(at::conv2d(x.narrow(0, 0, 0), w).sizes(), at::IntArrayRef({0, 6, 7, 7}));
  set_bf16_products(Bf16Products::kNative);
  EXPECT_TRUE(at::equal(at::conv2d(x, w, bias, 1, 1), before));
}

// More samples take no more beside the result.
TEST_F(Bf16Convolutions, TakeABufferOfBoundedSize) {
  const Convolution how = window({1, 1}, {1, 1}, {1, 1});
  const auto beside = [&](int64_t samples, bool backward) {
    const CpuProbe probe;
    const Tensor x = at::zeros({samples, 16, 64, 64}, at::kBFloat16),
                 w = at::zeros({16, 16, 3, 3}, at::kBFloat16);
    const auto run = [&] {
      if (!backward) return std::vector{converted_convolution(x, w, {}, how)};
      const auto [a, b, c] = converted_convolution_backward(x, x, w, how, {true, true, false});
      return std::vector{a, b};
    };
    return probe.beside(run).second;
  };
  constexpr int64_t kPart = int64_t{4} << 20;  // bytes of 16 samples in f32
  for (const bool backward : {false, true}) {
    EXPECT_EQ(beside(32, backward), beside(96, backward)) << backward;
    EXPECT_GE(beside(32, backward), kPart) << backward;
    EXPECT_LE(beside(32, backward), 8 * kPart) << backward;
  }
}

}  // namespace
}  // namespace compact
