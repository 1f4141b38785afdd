// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/philox.h"

namespace compact {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<float> kLogits = {0.0f, 2.0f, 1.0f, -1.0f, 2.0f};

std::set<int64_t> reached(const std::vector<float>& logits, const SamplingOptions& options) {
  std::set<int64_t> all;
  for (int i = 0; i < 2000; ++i) all.insert(sample(logits, options, i / 2000.0));
  return all;
}

TEST(Sampling, TemperatureZeroTakesTheFirstLargest) {
  for (const double u : {0.0, 0.5, 0.999}) EXPECT_EQ(sample(kLogits, {.temperature = 0}, u), 1);
}

TEST(Sampling, ChoosesInProportion) {
  // Each probability within 4.9 standard deviations: the test fails by chance once in 10^5 times.
  constexpr int kDraws = 20000;
  for (const double temperature : {0.5, 1.0, 3.0}) {
    std::vector<int> count(kLogits.size());
    double total = 0;
    for (const float l : kLogits) total += std::exp(l / temperature);
    for (uint64_t i = 0; i < kDraws; ++i) {
      ++count[static_cast<size_t>(
          sample(kLogits, {.temperature = temperature}, philox(7, i).v[0] * 0x1p-32))];
    }
    for (size_t t = 0; t < kLogits.size(); ++t) {
      const double p = std::exp(kLogits[t] / temperature) / total;
      EXPECT_NEAR(count[t], kDraws * p, 4.9 * std::sqrt(kDraws * p * (1 - p)))
          << temperature << " " << t;
    }
  }
}

TEST(Sampling, TopKKeepsTheLargest) {
  EXPECT_EQ(reached(kLogits, {.temperature = 1, .top_k = 1}), (std::set<int64_t>{1}));
  EXPECT_EQ(reached(kLogits, {.temperature = 1, .top_k = 2}), (std::set<int64_t>{1, 4}));
  EXPECT_EQ(reached(kLogits, {.temperature = 9, .top_k = 3}), (std::set<int64_t>{1, 2, 4}));
  EXPECT_EQ(reached(kLogits, {.temperature = 9, .top_k = 50}).size(), 5u);
}

TEST(Sampling, TopPKeepsTheFewestThatReachIt) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f),
                                     std::log(0.05f)};
  EXPECT_EQ(reached(logits, {.temperature = 1, .top_p = 0.4}).size(), 1u);
  EXPECT_EQ(reached(logits, {.temperature = 1, .top_p = 0.7}).size(), 2u);
  EXPECT_EQ(reached(logits, {.temperature = 1, .top_p = 0.9}).size(), 3u);
  EXPECT_EQ(reached(logits, {.temperature = 1, .top_p = 0.99}).size(), 4u);
  // Within the k largest, whose probabilities count again.
  EXPECT_EQ(reached(logits, {.temperature = 1, .top_k = 2, .top_p = 0.6}).size(), 1u);
}

TEST(Sampling, InfinitiesAndNan) {
  EXPECT_EQ(reached({-kInfinity, 1.0f, -kInfinity}, {.temperature = 1}), (std::set<int64_t>{1}));
  EXPECT_EQ(reached({0.0f, kInfinity}, {.temperature = 1}), (std::set<int64_t>{1}));
  EXPECT_THROW(sample(std::vector<float>{0, NAN}, {.temperature = 1}, 0.5), InputError);
  EXPECT_THROW(sample(std::vector<float>{NAN, 0}, {.temperature = 0}, 0.5), InputError);
  EXPECT_THROW(sample({}, {}, 0.5), InputError);
  EXPECT_EQ(sample(std::vector<float>{3}, {.temperature = 1}, 0.999), 0);
}

TEST(Sampling, RefusesSettingsOutOfRange) {
  EXPECT_NO_THROW(check_sampling({}));
  EXPECT_THROW(check_sampling({.temperature = -0.1}), InputError);
  EXPECT_THROW(check_sampling({.temperature = NAN}), InputError);
  EXPECT_THROW(check_sampling({.top_k = -1}), InputError);
  EXPECT_THROW(check_sampling({.top_p = 0}), InputError);
  EXPECT_THROW(check_sampling({.top_p = 1.01}), InputError);
}

}  // namespace
}  // namespace compact
