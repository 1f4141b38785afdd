// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/memory/block_cache.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "compact/ops/memory/memory.h"

namespace compact {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Bytes of this process in the machine's memory.
int64_t resident() {
  int64_t pages = 0, all = 0;
  std::ifstream("/proc/self/statm") >> all >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

class Blocks : public testing::Test {
 protected:
  void SetUp() override {
    if (!BlockCache::takes(kMiB)) GTEST_SKIP() << "blocks are those of the heap here";
  }
  // Written to from end to end.
  void* take(size_t bytes) {
    void* const block = cache_.allocate(bytes);
    std::memset(block, 1, bytes);
    return block;
  }
  BlockCache cache_{[](size_t used) { return used; }};
};

TEST_F(Blocks, AreGivenOutAgain) {
  void* const a = take(3 * kMiB);
  void* const b = take(5 * kMiB + 1);
  EXPECT_FALSE(BlockCache::takes(kMiB - 1));
  cache_.free(a, 3 * kMiB);
  cache_.free(b, 5 * kMiB + 1);
  EXPECT_EQ(take(5 * kMiB + 1), b);
  EXPECT_EQ(take(3 * kMiB), a);
  EXPECT_EQ(cache_.mapped(), 8 * kMiB + static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

// Whatever sizes come, in whatever order: no more is mapped than was in use at once.
TEST_F(Blocks, TakeNoMoreThanThoseInUseDidAtOnce) {
  std::mt19937 random(1);
  std::vector<std::pair<void*, size_t>> live;
  size_t used = 0, most = 0;
  for (int i = 0; i < 3000; ++i) {
    if (live.size() > 8 || (!live.empty() && random() % 2)) {
      std::swap(live[random() % live.size()], live.back());
      const auto [block, size] = live.back();
      // Nobody else has written to it.
      for (size_t k = 0; k < size; k += 4096) {
        ASSERT_EQ(static_cast<char*>(block)[k], static_cast<char>(size >> 12)) << i;
      }
      cache_.free(block, size);
      used -= size;
      live.pop_back();
      continue;
    }
    const size_t size = kMiB + random() % 2000 * 4096;
    void* const block = cache_.allocate(size);
    std::memset(block, static_cast<int>(size >> 12), size);
    live.emplace_back(block, size);
    used += size;
    most = std::max(most, used);
    ASSERT_LE(cache_.mapped(), most) << i;
  }
}

// Tensors of the sizes of a backward pass whose gradients are freed as soon as they are used,
// beside small ones that stay: one heap grows to twice what lives at once.
TEST(ResidentMemory, StaysNearTheTensorsThatLive) {
  if (!BlockCache::takes(kMiB)) GTEST_SKIP() << "blocks are those of the heap here";
  install_counting_allocator();
  at::ones({int64_t{64} << 20}, at::kByte);
  std::vector<at::Tensor> kept;
  std::mt19937 random(1);
  const int64_t before = resident() - live_bytes(at::kCPU);
  reset_peak(at::kCPU);
  int64_t highest = 0;
  for (int step = 0; step < 200; ++step) {
    std::vector<at::Tensor> live;
    for (int i = 0; i < 6; ++i) {
      live.push_back(at::ones({(200 + static_cast<int64_t>(random() % 8000)) << 10}, at::kByte));
      kept.push_back(at::ones({1 << 10}, at::kByte));
    }
    highest = std::max(highest, resident());
  }
  EXPECT_LE(highest - before, peak_bytes(at::kCPU) * 9 / 8 + (int64_t{48} << 20));
}

}  // namespace
}  // namespace compact
