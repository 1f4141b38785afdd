// SPDX-License-Identifier: Apache-2.0
#include "support.h"

namespace compact::kernels {
namespace {

const Distribution kDistributions[] = {Distribution::kNormal, Distribution::kRademacher,
                                       Distribution::kSparse, Distribution::kUniform};

// Moments of 400,000 values within five standard errors: a right program fails this for fewer than
// one key in a hundred thousand, and the keys are fixed.
TEST(Draw, HasTheMomentsOfItsDistribution) {
  const int64_t count = 400000;
  for (const Backend* backend : cpu_backends()) {
    for (Distribution d : kDistributions) {
      Buffer x(Type::kFloat32, count);
      backend->draw({x.data(), count, 5, 2.0f, d, Type::kFloat32}, serial());
      double mean = 0, square = 0, fourth = 0, lag = 0;
      for (int64_t i = 0; i < count; ++i) {
        const double v = x[i] / 2;
        mean += v / count;
        square += v * v / count;
        fourth += v * v * v * v / count;
        if (i > 0) lag += v * x[i - 1] / 2 / count;
      }
      const double kurtosis = d == Distribution::kRademacher ? 1
                              : d == Distribution::kUniform  ? 1.8
                                                             : 3;
      const double unit = 5 / std::sqrt(static_cast<double>(count));
      EXPECT_NEAR(mean, 0, unit) << backend->name;
      EXPECT_NEAR(square, 1, unit * std::sqrt(kurtosis - 1) + 1e-6) << backend->name;
      EXPECT_NEAR(fourth, kurtosis, unit * 10) << backend->name;
      EXPECT_NEAR(lag, 0, unit) << backend->name;
    }
  }
}

TEST(Draw, NormalIsTheInverseDistributionFunction) {
  // Phi(x) by erfc, at u from end to end.
  for (uint64_t u = 0; u < (uint64_t{1} << 32); u += u < 4096 ? 1 : 999983) {
    const double x = normal_of(static_cast<uint32_t>(u));
    const double p = (static_cast<double>(u) + 0.5) / 4294967296.0;
    const double got = 0.5 * std::erfc(-x / std::sqrt(2.0));
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    ASSERT_NEAR((got - p) / density, 0, 4e-7 * std::max(1.0, std::abs(x))) << u;
    ASSERT_EQ(normal_of(~static_cast<uint32_t>(u)), -static_cast<float>(x)) << u;
  }
  for (double x : {1e-10, 1e-5, 0.074, 0.49, 0.5, 0.75, 1.0, 1.4999, 3.0, 1e9}) {
    EXPECT_NEAR(exact_log(x), std::log(x), 1e-11 * std::max(1.0, std::abs(std::log(x)))) << x;
  }
}

}  // namespace
}  // namespace compact::kernels
