// SPDX-License-Identifier: Apache-2.0
// Products and attention of bf16 tensors in tiles of f32: values, memory, and who takes them.
#include "compact/ops/cpu/bf16_products.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <tuple>

#include "compact/base/check.h"
#include "compact/ops/memory/memory.h"

namespace compact {
namespace {

class Bf16Products_ : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  Bf16Products_() { at::manual_seed(3); }
  ~Bf16Products_() override { set_bf16_products(Bf16Products::kNative); }
};

at::Tensor random_bf16(at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); }

// A matrix by rows, by columns, or as columns of a wider one.
at::Tensor laid_out(int64_t rows, int64_t columns, int kind) {
  if (kind == 0) return random_bf16({rows, columns});
  if (kind == 1) return random_bf16({columns, rows}).t();
  return random_bf16({rows, columns + 5}).narrow(1, 3, columns);
}

// Each number at most one rounding to 8 bits from the sum in f64, beside what sums in f32 of so
// large terms may be off.
void expect_rounded_once(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& terms,
                         const std::string& what) {
  ASSERT_EQ(got.sizes(), exact.sizes()) << what;
  const at::Tensor bound = exact.abs() * std::ldexp(1.0, -8) + terms * 2e-6 + 1e-30;
  const at::Tensor off = (got.to(at::kDouble) - exact).abs() - bound;
  EXPECT_LE(off.numel() ? off.max().item<double>() : 0.0, 0) << what;
}

TEST_F(Bf16Products_, AreSumsInF32RoundedOnceInEveryLayout) {
  for (const auto& [m, k, n] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                {0, 3, 4},
                                {3, 0, 4},
                                {3, 4, 0},
                                {5, 7, 3},
                                {65, 33, 17},
                                {1030, 20, 9},
                                {9, 2050, 12},
                                {7, 30, 1100},
                                {1025, 1025, 1025}}) {
    for (int layout = 0; layout < 9; ++layout) {
      if (m * k * n > 1000000 && layout != 1 && layout != 5) continue;
      const at::Tensor a = laid_out(m, k, layout % 3), b = laid_out(k, n, layout / 3);
      const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
      const std::string what = cat(m, " ", k, " ", n, " layout ", layout);
      const at::Tensor terms = x.abs().mm(y.abs());
      const at::Tensor out = at::full({m, n}, NAN, at::kBFloat16);
      converted_product(out, {}, a, b);
      expect_rounded_once(out, x.mm(y), terms, what);
      const at::Tensor self = random_bf16({m, n});
      converted_product(out, self, a, b, 0.5, -2);
      expect_rounded_once(out, self.to(at::kDouble) * 0.5 - 2 * x.mm(y),
                          2 * terms + self.to(at::kDouble).abs(), what + " added");
    }
  }
}

TEST_F(Bf16Products_, OfBatchesAreThoseOfTheirMatrices) {
  for (const auto& [count, m, k, n] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{0, 2, 3, 4},
                                       {3, 5, 7, 2},
                                       {70, 64, 64, 64},
                                       {2, 1030, 8, 1100},
                                       {3, 2, 0, 2}}) {
    const at::Tensor a = random_bf16({count, m, k}), b = random_bf16({count, n, k}).transpose(1, 2);
    const at::Tensor self = random_bf16({count, m, n}), out = at::empty_like(self);
    converted_product(out, self, a, b, 2, 1);
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor one = at::empty({m, n}, at::kBFloat16);
      converted_product(one, self[i], a[i], b[i], 2, 1);
      EXPECT_TRUE(at::equal(out[i], one)) << count << " " << m << " " << k << " " << n << " " << i;
    }
  }
}

// With conversion on, every operation of LibTorch gives the same bits as ours, with and without a
// graph; with it off, its own again.
TEST_F(Bf16Products_, ServeEveryOperationOfLibTorch) {
  const at::Tensor x = random_bf16({6, 40}), w = random_bf16({9, 40}), bias = random_bf16({9});
  const at::Tensor batch = random_bf16({3, 6, 40}), weights = random_bf16({3, 40, 9});
  const at::Tensor f32 = at::randn({6, 40}).mm(at::randn({40, 9}));
  const at::Tensor before = at::linear(x, w);
  set_bf16_products(Bf16Products::kConverted);
  EXPECT_EQ(bf16_products(), Bf16Products::kConverted);
  const at::Tensor product = at::empty({6, 9}, at::kBFloat16), with_bias = at::empty_like(product);
  converted_product(product, {}, x, w.t());
  converted_product(with_bias, bias.expand({6, 9}), x, w.t());
  const at::Tensor products = at::empty({3, 6, 9}, at::kBFloat16);
  converted_product(products, {}, batch, weights);
  EXPECT_TRUE(at::equal(x.mm(w.t()), product));
  EXPECT_TRUE(at::equal(at::linear(x, w), product));
  EXPECT_TRUE(at::equal(at::matmul(x, w.t()), product));
  EXPECT_TRUE(at::equal(at::linear(x, w, bias), with_bias));
  EXPECT_TRUE(at::equal(at::addmm(bias, x, w.t()), with_bias));
  EXPECT_TRUE(at::equal(batch.bmm(weights), products));
  EXPECT_TRUE(at::equal(at::baddbmm(at::zeros_like(products), batch, weights), products));
  at::Tensor out = at::zeros({6, 9}, at::kBFloat16);
  EXPECT_TRUE(at::equal(at::mm_out(out, x, w.t()), product));
  EXPECT_TRUE(at::equal(out.zero_().addmm_(x, w.t()), product));
  EXPECT_TRUE(at::equal(at::addmm_out(out, bias, x, w.t()), with_bias));
  at::Tensor of_batch = at::zeros({3, 6, 9}, at::kBFloat16);
  EXPECT_TRUE(at::equal(at::bmm_out(of_batch, batch, weights), products));
  EXPECT_TRUE(at::equal(of_batch.zero_().baddbmm_(batch, weights), products));
  at::Tensor leaf = w.clone().requires_grad_();
  at::linear(x, leaf).sum().backward();
  const at::Tensor ones = at::ones({6, 9}, at::kBFloat16), gradient = at::empty_like(w);
  converted_product(gradient, {}, ones.t(), x);
  EXPECT_TRUE(at::allclose(leaf.grad(), gradient));
  // Errors are LibTorch's, other types are its own.
  EXPECT_THROW(x.mm(w), c10::Error);
  EXPECT_THROW(x.mm(w.t().to(at::kFloat)), c10::Error);
  EXPECT_THROW(at::addmm(random_bf16({5}), x, w.t()), c10::Error);
  at::manual_seed(3);
  set_bf16_products(Bf16Products::kNative);
  EXPECT_EQ(bf16_products(), Bf16Products::kNative);
  EXPECT_TRUE(at::equal(at::linear(x, w), before));
}

TEST_F(Bf16Products_, AttentionIsThatOfF32RoundedOnce) {
  set_bf16_products(Bf16Products::kConverted);
  // The last has more heads than are converted at a time.
  for (const auto& [batch, heads, queries, keys, dim] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 1, 8},
        {2, 3, 70, 70, 16},
        {3, 2, 20, 33, 24},
        {2, 40, 260, 260, 64}}) {
    const auto random = [&, b = batch, h = heads, d = dim](int64_t tokens) {
      return random_bf16({b, tokens, h, d}).transpose(1, 2);
    };
    const at::Tensor q = random(queries), k = random(keys), v = random(keys), g = random(queries);
    const auto up = [](const at::Tensor& t) { return t.to(at::kFloat).contiguous(); };
    std::optional<at::Tensor> mask;
    const bool causal = queries == keys;
    if (!causal) mask = at::randn({1, 1, queries, keys}).to(at::kBFloat16);
    std::optional<at::Tensor> mask32;
    if (mask) mask32 = mask->to(at::kFloat);
    const auto [out, lse] =
        at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, mask);
    const auto [out32, lse32] =
        at::_scaled_dot_product_flash_attention_for_cpu(up(q), up(k), up(v), 0.0, causal, mask32);
    EXPECT_TRUE(at::equal(out, out32.to(at::kBFloat16)));
    EXPECT_TRUE(at::equal(lse, lse32));
    EXPECT_EQ(out.stride(1), dim) << "laid out by tokens, as LibTorch's";
    const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        g, q, k, v, out, lse, 0.0, causal, mask);
    const auto [hq, hk, hv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        up(g), up(q), up(k), up(v), up(out), lse, 0.0, causal, mask32);
    EXPECT_TRUE(at::equal(gq, hq.to(at::kBFloat16)));
    EXPECT_TRUE(at::equal(gk, hk.to(at::kBFloat16)));
    EXPECT_TRUE(at::equal(gv, hv.to(at::kBFloat16)));
  }
}

// Whatever the sizes, what is beside the result stays below these bytes.
TEST_F(Bf16Products_, TakeABufferOfBoundedSize) {
  constexpr int64_t kBound = 3 * 1024 * 1024 * 4;
  for (const auto& [m, k, n] : {std::tuple<int64_t, int64_t, int64_t>{2000, 2000, 2000},
                                {1, 5000, 3000},
                                {4000, 64, 4000}}) {
    const CpuProbe probe;
    const at::Tensor a = at::zeros({m, k}, at::kBFloat16), b = at::zeros({k, n}, at::kBFloat16),
                     out = at::empty({m, n}, at::kBFloat16);
    const auto [none, bytes] = probe.beside([&] {
      converted_product(out, {}, a, b);
      return 0;
    });
    EXPECT_LE(bytes, kBound) << m << " " << k << " " << n;
    EXPECT_GT(bytes, 0);
  }
}

TEST_F(Bf16Products_, AreChosenByAVariableOfTheEnvironment) {
  setenv("COMPACT_BF16_PRODUCTS", "converted", 1);
  set_bf16_products();
  EXPECT_EQ(bf16_products(), Bf16Products::kConverted);
  setenv("COMPACT_BF16_PRODUCTS", "fast", 1);
  EXPECT_THROW(set_bf16_products(), InputError);
  setenv("COMPACT_BF16_PRODUCTS", "native", 1);
  set_bf16_products();
  EXPECT_EQ(bf16_products(), Bf16Products::kNative);
  unsetenv("COMPACT_BF16_PRODUCTS");
}

}  // namespace
}  // namespace compact
