// SPDX-License-Identifier: Apache-2.0
#include "compact/config/memory_limit.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace compact {
namespace {

TEST(MemoryLimit, KeepsAMarginOfWhatIsLeft) {
  std::ifstream in("/proc/meminfo");
  std::string key;
  int64_t available = 0;
  while (in >> key && key != "MemAvailable:") {
  }
  if (!(in >> available)) GTEST_SKIP() << "this system has no MemAvailable";
  // Half of the margin is for what other processes free meanwhile.
  EXPECT_LT(memory_limit(0).bytes, available * 1024 - (int64_t{128} << 20));
  EXPECT_EQ(memory_limit(1000).bytes, 1000);
}

TEST(MemoryLimit, BoundsThePrimitiveCacheUnlessTheUserDoes) {
  constexpr const char* kName = "ONEDNN_PRIMITIVE_CACHE_CAPACITY";
  const char* const before = ::getenv(kName);
  const std::string kept = before ? before : "";
  ::setenv(kName, "7", 1);
  bound_primitive_cache();
  EXPECT_STREQ(::getenv(kName), "7");
  ::unsetenv(kName);
  bound_primitive_cache();
  ASSERT_NE(::getenv(kName), nullptr);
  EXPECT_LE(std::stoi(::getenv(kName)), 128);
  before ? ::setenv(kName, kept.c_str(), 1) : ::unsetenv(kName);
}

}  // namespace
}  // namespace compact
