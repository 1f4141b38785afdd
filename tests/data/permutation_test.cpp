// SPDX-License-Identifier: Apache-2.0
#include "compact/data/samples/permutation.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace compact {
namespace {

std::vector<uint64_t> all(uint64_t n, uint64_t key) {
  const Permutation permutation(n, key);
  std::vector<uint64_t> out(n);
  for (uint64_t i = 0; i < n; ++i) out[i] = permutation(i);
  return out;
}

TEST(Permutation, IsOneForEverySize) {
  for (uint64_t n = 1; n <= 300; ++n) {
    for (const uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      std::vector<bool> seen(n, false);
      for (const uint64_t to : all(n, key)) {
        ASSERT_LT(to, n);
        ASSERT_FALSE(seen[to]) << n << " " << key;
        seen[to] = true;
      }
    }
  }
}

TEST(Permutation, DependsOnItsKey) {
  std::set<std::vector<uint64_t>> different;
  for (uint64_t key = 0; key < 200; ++key) different.insert(all(100, key));
  EXPECT_EQ(different.size(), 200u);
  EXPECT_EQ(all(100, 5), all(100, 5));
}

TEST(Permutation, ReachesEveryPlaceAboutEquallyOften) {
  // 40,000 keys, n = 10: a count of a place has mean 4,000 and spread 60; six spreads for the
  // largest of 100 counts are exceeded by chance less than once in a million runs (keys are fixed).
  const uint64_t n = 10;
  std::vector<int> counts(n * n, 0);
  for (uint64_t key = 0; key < 40000; ++key) {
    const Permutation permutation(n, key);
    for (uint64_t i = 0; i < n; ++i) ++counts[i * n + permutation(i)];
  }
  for (const int count : counts) EXPECT_NEAR(count, 4000, 360);
}

TEST(Permutation, NeighboursAreNotKeptTogether) {
  // In a random permutation of 10,000 about two pairs stay neighbours (i, i + 1).
  const auto out = all(10000, 42);
  int together = 0;
  for (size_t i = 1; i < out.size(); ++i) together += out[i] == out[i - 1] + 1;
  EXPECT_LE(together, 12);
}

TEST(Permutation, HugeSizesStayInRange) {
  for (const uint64_t n : {(uint64_t{1} << 62) - 1, uint64_t{1} << 62, (uint64_t{1} << 60) + 1}) {
    const Permutation permutation(n, 9);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 1000; ++i) {
      const uint64_t to = permutation(n - 1 - i);
      EXPECT_LT(to, n);
      seen.insert(to);
    }
    EXPECT_EQ(seen.size(), 1000u);
  }
}

TEST(Permutation, IsTheSameOnEveryMachine) {
  // From an independent implementation in Python.
  EXPECT_EQ(all(7, 1), (std::vector<uint64_t>{2, 0, 4, 5, 1, 6, 3}));
  const Permutation permutation(1000, 12345678901234567890u);
  const uint64_t expected[] = {900, 844, 631, 974, 500};
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(permutation(i), expected[i]);
}

}  // namespace
}  // namespace compact
