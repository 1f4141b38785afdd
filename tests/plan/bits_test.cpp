// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "compact/base/check.h"

namespace compact {
namespace {

TensorBits tensor(int64_t elements, double sensitivity) {
  TensorBits t{.name = cat(elements), .sensitivity = sensitivity};
  for (const int bits : {1, 2, 4, 8}) {
    const int64_t bytes = (elements * bits + 7) / 8 + (elements + 255) / 256 * 4;
    t.choices.push_back({bits, bytes, uniform_error(bits)});
  }
  return t;
}
std::vector<TensorBits> random_tensors(std::mt19937& random, int count) {
  std::vector<TensorBits> all;
  for (int i = 0; i < count; ++i) {
    const auto size = static_cast<int64_t>(1) << random() % 12;
    all.push_back(tensor(size + static_cast<int64_t>(random() % 100),
                         std::exp(static_cast<double>(random() % 1000) / 100 - 5)));
  }
  return all;
}
int64_t bytes_at(const std::vector<TensorBits>& all, size_t choice) {
  int64_t sum = 0;
  for (const TensorBits& t : all) sum += t.choices[choice].bytes;
  return sum;
}
double error_at(const std::vector<TensorBits>& all, size_t choice) {
  double sum = 0;
  for (const TensorBits& t : all) sum += t.sensitivity * t.choices[choice].error;
  return sum;
}

double brute(const std::vector<TensorBits>& all, size_t i, int64_t left) {
  if (i == all.size()) return 0;
  double best = INFINITY;
  for (const BitChoice& c : all[i].choices) {
    if (c.bytes > left) continue;
    best = std::min(best, all[i].sensitivity * c.error + brute(all, i + 1, left - c.bytes));
  }
  return best;
}

TEST(Bits, ExactEqualsBruteForce) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto all = random_tensors(random, 1 + static_cast<int>(random() % 6));
    const int64_t low = bytes_at(all, 0), high = bytes_at(all, 3);
    const int64_t budget =
        low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 10));
    const BitAllocation exact = allocate_exact(all, budget);
    EXPECT_NEAR(exact.error, brute(all, 0, budget), 1e-9 * (exact.error + 1e-30));
    int64_t bytes = 0;
    for (size_t i = 0; i < all.size(); ++i) bytes += all[i].choices[exact.chosen[i]].bytes;
    EXPECT_EQ(exact.bytes, bytes);
    EXPECT_LE(bytes, budget);
  }
}

TEST(Bits, NeverWorseThanUniformAtEqualBytes) {
  std::mt19937 random(4);
  for (const int count : {1, 10, 60, 200}) {
    const auto all = random_tensors(random, count);
    for (size_t choice = 0; choice < 4; ++choice) {
      const BitAllocation a = allocate_exact(all, bytes_at(all, choice));
      EXPECT_LE(a.error, error_at(all, choice) * (1 + 1e-9));
    }
    EXPECT_LT(allocate_exact(all, bytes_at(all, 2)).error,
              error_at(all, 2) * (count > 1 ? .9 : 1.1));
  }
}

TEST(Bits, SensitiveTensorsGetMore) {
  const std::vector<TensorBits> all = {tensor(1000, 100), tensor(1000, 1), tensor(1000, 0)};
  const BitAllocation a = allocate_exact(all, bytes_at(all, 2));
  EXPECT_EQ(all[0].choices[a.chosen[0]].bits, 8);
  EXPECT_EQ(all[2].choices[a.chosen[2]].bits, 1);
  EXPECT_EQ(allocate_exact(all, INT64_MAX / 2).error, error_at(all, 3));
}

TEST(Bits, RefusesBudgetsThatNothingMeets) {
  const std::vector<TensorBits> all = {tensor(1000, 1)};
  EXPECT_THROW(allocate_exact(all, bytes_at(all, 0) - 1), InputError);
  EXPECT_THROW(allocate_exact(std::vector{TensorBits{"none", 1, {}}}, 100), InputError);
  EXPECT_THROW(allocate_exact(std::vector{tensor(10, -1)}, 1000), InputError);
  EXPECT_TRUE(allocate_exact(std::vector<TensorBits>{}, 0).chosen.empty());
}

}  // namespace
}  // namespace compact
