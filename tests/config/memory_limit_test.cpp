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
  EXPECT_LT(memory_limit(0, 4).bytes, available * 256);
  EXPECT_EQ(memory_limit(1000, 4).bytes, 1000);
}

TEST(MemoryLimit, BoundsThePrimitiveCachesUnlessTheUserDoes) {
  for (const char* const name : {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"}) {
    const char* const before = ::getenv(name);
    const std::string kept = before ? before : "";
    ::setenv(name, "7", 1);
    bound_primitive_caches();
    EXPECT_STREQ(::getenv(name), "7");
    ::unsetenv(name);
    bound_primitive_caches();
    ASSERT_NE(::getenv(name), nullptr);
    EXPECT_LE(std::stoi(::getenv(name)), 64);
    before ? ::setenv(name, kept.c_str(), 1) : ::unsetenv(name);
  }
}

}  // namespace
}  // namespace compact
