// SPDX-License-Identifier: Apache-2.0
#include "compact/optim/schedules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compact/base/check.h"

namespace compact {
namespace {

TEST(Schedule, WarmsUpThenDecays) {
  for (const ScheduleInfo* info : schedules()) {
    SCOPED_TRACE(info->name);
    const Schedule s(info->name, 110, 10, 0.1);
    EXPECT_EQ(s.warmup(), 10);
    for (int64_t i = 0; i < 10; ++i) EXPECT_DOUBLE_EQ(s.factor(i), (i + 1) / 10.0);
    EXPECT_DOUBLE_EQ(s.factor(10), 1);
    for (int64_t i = 11; i < 110; ++i) {
      EXPECT_LE(s.factor(i), s.factor(i - 1));
      EXPECT_GE(s.factor(i), 0.1);
    }
    const double end = info->name == "constant" ? 1 : 0.1;
    EXPECT_NEAR(s.factor(110), end, 1e-12);
    EXPECT_NEAR(s.factor(1000), end, 1e-12);
  }
}

TEST(Schedule, HasItsShape) {
  EXPECT_DOUBLE_EQ(Schedule("linear", 100, 0, 0.2).factor(25), 0.2 + 0.8 * 0.75);
  EXPECT_DOUBLE_EQ(Schedule("cosine", 100, 0, 0).factor(50), 0.5);
  EXPECT_DOUBLE_EQ(Schedule("cosine", 120, 20, 0.1).factor(45),
                   0.1 + 0.9 * (1 + std::sqrt(.5)) / 2);
  EXPECT_DOUBLE_EQ(Schedule("constant", 100).factor(99), 1);
  EXPECT_DOUBLE_EQ(Schedule("wsd", 100).factor(80), 1);
  EXPECT_NEAR(Schedule("wsd", 100).factor(90), 0.5, 1e-12);
  EXPECT_NEAR(Schedule("wsd", 100, 0, 0.5).factor(95), 0.625, 1e-12);
}

TEST(Schedule, TakesWarmupAsCountOrFraction) {
  EXPECT_EQ(Schedule("cosine", 1000, 0.1).warmup(), 100);
  EXPECT_EQ(Schedule("cosine", 1000, 1).warmup(), 1);
  EXPECT_EQ(Schedule("cosine", 1000, 0).warmup(), 0);
  EXPECT_DOUBLE_EQ(Schedule("cosine", 1, 1).factor(0), 1);
  EXPECT_DOUBLE_EQ(Schedule("cosine", 1).factor(0), 1);
}

TEST(Schedule, RefusesBadInput) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(Schedule("cosin", 10), InputError);
  EXPECT_THROW(Schedule("cosine", 0), InputError);
  for (const double warmup : {-0.1, 1.5, 11.0, nan}) {
    EXPECT_THROW(Schedule("cosine", 10, warmup), InputError) << warmup;
  }
  for (const double ratio : {-0.1, 1.1, nan}) {
    EXPECT_THROW(Schedule("cosine", 10, 0, ratio), InputError) << ratio;
  }
}

}  // namespace
}  // namespace compact
