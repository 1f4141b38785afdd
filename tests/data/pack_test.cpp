// SPDX-License-Identifier: Apache-2.0
#include "compact/data/samples/pack.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/data/files.h"

namespace compact {
namespace {

using Rows = std::vector<std::vector<int64_t>>;

TEST(PackedRows, TakeTheRowWithTheLeastRoom) {
  // 6 and 5 leave 2 and 3; the 3 fills the second, the 2 the first, though it came later.
  EXPECT_EQ(packed_rows(std::vector<int64_t>{2, 5, 3, 6}, 8, 1), (Rows{{3, 0}, {1, 2}}));
  EXPECT_EQ(packed_rows(std::vector<int64_t>{8, 8}, 8, 1).size(), 2U);
  EXPECT_TRUE(packed_rows({}, 8, 1).empty());
}

TEST(PackedRows, HaveEverySampleOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    const auto capacity = static_cast<int64_t>(1 + random() % 60);
    std::vector<int64_t> lengths(random() % 300);
    for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random()) % capacity;
    const Rows rows = packed_rows(lengths, capacity, 7);
    EXPECT_EQ(rows, packed_rows(lengths, capacity, 7));
    std::vector<bool> seen(lengths.size());
    int64_t half_empty = 0;
    for (const auto& row : rows) {
      int64_t sum = 0;
      for (const int64_t number : row) {
        EXPECT_FALSE(seen[static_cast<size_t>(number)]);
        seen[static_cast<size_t>(number)] = true;
        sum += lengths[static_cast<size_t>(number)];
      }
      EXPECT_LE(sum, capacity);
      half_empty += 2 * sum <= capacity;
    }
    EXPECT_EQ(std::ranges::count(seen, true), std::ssize(lengths));
    EXPECT_LE(half_empty, 1);  // two such would be one
  }
}

TEST(PackedRows, MixSamplesOfOneLengthByTheKey) {
  const std::vector<int64_t> lengths(64, 4);
  EXPECT_NE(packed_rows(lengths, 16, 1), packed_rows(lengths, 16, 2));
  EXPECT_EQ(packed_rows(lengths, 16, 1).size(), 16U);
}

TEST(PackedRows, RefuseWhatNoRowHolds) {
  for (const int64_t length : {0, 9, -1}) {
    EXPECT_THAT(one_line_error_of([&] {
                  packed_rows(std::vector<int64_t>{1, length}, 8, 1);
                }),
                testing::HasSubstr(cat("length 1 must be from 1 to 8, is ", length)));
  }
}

}  // namespace
}  // namespace compact
