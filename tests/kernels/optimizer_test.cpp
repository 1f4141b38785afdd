// SPDX-License-Identifier: Apache-2.0
#include "support.h"

namespace compact::kernels {
namespace {

TEST(AdamW, IsTheFormula) {  // against doubles, 20 steps
  const int64_t count = 50;
  const float scale = 0.5f;
  for (const Backend* backend : cpu_backends()) {
    Buffer param = random(Type::kFloat32, count, 1);
    Buffer moment1(Type::kFloat32, std::vector<float>(count)), moment2 = moment1;
    std::vector<double> p(count), m(count), v(count);
    for (int64_t i = 0; i < count; ++i) p[static_cast<size_t>(i)] = param[i];
    for (int step = 1; step <= 20; ++step) {
      Buffer grad = random(Type::kFloat32, count, static_cast<uint64_t>(step));
      backend->adamw({.param = param.data(),
                      .grad = grad.data(),
                      .grad_scale = &scale,
                      .m = moment1.data(),
                      .v = moment2.data(),
                      .count = count,
                      .lr = 0.01f,
                      .beta1 = 0.9f,
                      .beta2 = 0.99f,
                      .eps = 1e-6f,
                      .weight_decay = 0.1f,
                      .bias1 = 1 - std::pow(0.9f, static_cast<float>(step)),
                      .bias2 = 1 - std::pow(0.99f, static_cast<float>(step)),
                      .key = derive(17, static_cast<uint64_t>(step))},
                     serial());
      for (size_t i = 0; i < p.size(); ++i) {
        const double g = 0.5 * grad[static_cast<int64_t>(i)];
        p[i] -= 0.01 * 0.1 * p[i];
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.99 * v[i] + 0.01 * g * g;
        const double root = std::sqrt(v[i] / (1 - std::pow(0.99, step)));
        p[i] -= 0.01 * m[i] / (1 - std::pow(0.9, step)) / (root + 1e-6);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_NEAR(param[i], p[static_cast<size_t>(i)], 2e-6) << backend->name;
    }
  }
}

// v in bf16 follows E[g^2] where nearest rounding would leave it: beta2 = 0.999, g^2 = 1 first,
// then 0.25. After 4000 steps v should be 0.25 + 0.75 e^-4 = 0.2637; over 4096 elements with a
// spread of less than 0.03 each the mean is within 0.0025 (five standard errors).
TEST(AdamW, SecondMomentInBf16Decays) {
  const int64_t count = 4096;
  for (const Backend* backend : cpu_backends()) {
    Buffer p(Type::kFloat32, std::vector<float>(count)),
        m(Type::kBFloat16, std::vector<float>(count));
    Buffer v(Type::kBFloat16, std::vector<float>(count, 1.0f));
    Buffer g(Type::kFloat32, std::vector<float>(count, 0.5f));
    for (uint64_t step = 0; step < 4000; ++step) {
      if (backend == &reference_backend && step > 400) break;  // slow; equal by the test above
      backend->adamw({.param = p.data(),
                      .grad = g.data(),
                      .m = m.data(),
                      .v = v.data(),
                      .count = count,
                      .lr = 0,
                      .beta1 = 0.9f,
                      .beta2 = 0.999f,
                      .eps = 1e-6f,
                      .weight_decay = 0,
                      .bias1 = 1,
                      .bias2 = 1,
                      .key = derive(3, step),
                      .type = Type::kFloat32,
                      .grad_type = Type::kFloat32,
                      .state_type = Type::kBFloat16},
                     serial());
    }
    const int steps = backend == &reference_backend ? 401 : 4000;
    double mean_v = 0, mean_m = 0;
    for (int64_t i = 0; i < count; ++i) mean_v += v[i] / count, mean_m += m[i] / count;
    EXPECT_NEAR(mean_v, 0.25 + 0.75 * std::pow(0.999, steps), 0.0025) << backend->name;
    EXPECT_NEAR(mean_m, 0.5, 0.001) << backend->name;
  }
}

TEST(Fold, PartsAreTheWhole) {  // offset makes the pieces of a tensor fold as one
  for (const Backend* backend : cpu_backends()) {
    const int64_t count = 1000, cut = 333;
    Buffer w = random(Type::kBFloat16, count, 1), pieces = random(Type::kBFloat16, count, 1);
    Buffer d = random(Type::kFloat32, count, 2, 0.01f);
    Fold a{w.data(), nullptr, d.f32(), count, 1, 1, 7, 5, Type::kBFloat16};
    backend->fold(a, serial());
    a.w = pieces.data();
    a.count = cut;
    backend->fold(a, serial());
    a.w = static_cast<BFloat16*>(pieces.data()) + cut;
    a.d += cut;
    a.count = count - cut;
    a.offset += cut;
    backend->fold(a, serial());
    EXPECT_TRUE(pieces.same_bits(w)) << backend->name;
  }
}

// A step of 0.1 units in the last place moves w up one time in ten: 200,000 draws within five
// standard errors; every half of a word alike.
TEST(Fold, StochasticRoundingIsUnbiased) {
  const int64_t count = 200000;
  const float unit = 1.0f / 128;
  for (const Backend* backend : cpu_backends()) {
    Buffer w(Type::kBFloat16, std::vector<float>(count, 1.0f));
    Buffer d(Type::kFloat32, std::vector<float>(count, 0.1f * unit));
    backend->fold({w.data(), nullptr, d.f32(), count, 1, 1, 7, 0, Type::kBFloat16}, serial());
    int64_t up[8] = {};
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(w[i] == 1.0f || w[i] == 1.0f + unit);
      up[i % 8] += w[i] > 1;
    }
    for (int64_t n : up) {
      const double expected = 0.1 * count / 8;
      EXPECT_NEAR(static_cast<double>(n), expected, 5 * std::sqrt(expected * 0.9)) << backend->name;
    }
  }
}

TEST(StochasticRounding, KeepsSpecialValues) {
  const float inf = std::numeric_limits<float>::infinity();
  const float most = std::numeric_limits<float>::max();
  BFloat16 out;
  for (uint32_t random : {0u, 1u, 0x8000u, 0xffffu}) {
    store_stochastic(out, inf, random);
    EXPECT_EQ(load(out), inf);
    store_stochastic(out, -inf, random);
    EXPECT_EQ(load(out), -inf);
    store_stochastic(out, NAN, random);
    EXPECT_TRUE(std::isnan(load(out)));
    store_stochastic(out, float_of(0x7f800001u), random);  // a NaN whose upper half is infinity's
    EXPECT_TRUE(std::isnan(load(out)));
    store_stochastic(out, most, random);
    EXPECT_TRUE(std::isfinite(load(out)));
    store_stochastic(out, 1.5f, random);
    EXPECT_EQ(load(out), 1.5f);
  }
}

}  // namespace
}  // namespace compact::kernels
