// SPDX-License-Identifier: Apache-2.0
#include "compact/config/heap_trimmer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "compact/config/memory_limit.h"
#include "compact/ops/memory/memory.h"

namespace compact {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
constexpr bool kOwnHeap = false;
#else
constexpr bool kOwnHeap = true;
#endif

// A step of twelve tensors of `kib`; between them small ones that stay for five steps, as what a
// library caches by shape does.
void take_step(int64_t kib, std::vector<at::Tensor>* kept = nullptr) {
  reset_peak(at::kCPU);
  std::vector<at::Tensor> live;
  for (int i = 0; i < 12; ++i) {
    live.push_back(at::ones({kib << 10}, at::kByte));
    if (kept) kept->push_back(at::ones({1 << 10}, at::kByte));
  }
  if (kept && kept->size() > 60) kept->erase(kept->begin(), kept->begin() + 12);
}

TEST(HeapTrimmer, KeepsAProcessNearItsTensorsWhereSizesChange) {
  if (!kOwnHeap) GTEST_SKIP() << "the heap is not glibc's";
  if (!resident_bytes()) GTEST_SKIP() << "this system has no /proc/self/status";
  install_counting_allocator();
  std::vector<at::Tensor> kept;
  HeapTrimmer trimmer;
  std::mt19937 random(1);
  int trims = 0;
  int64_t highest = 0, first = 0;
  for (int i = 0; i < 60; ++i) {
    take_step(i == 0 ? 8192 : 200 + static_cast<int64_t>(random() % 8000), &kept);
    trims += trimmer.after_step(peak_bytes(at::kCPU));
    if (i == 0) first = *resident_bytes();
    highest = std::max(highest, *resident_bytes());
  }
  EXPECT_GT(trims, 0);
  EXPECT_LE(highest, first + (int64_t{64} << 20));
}

// Where the heap takes a few steps to settle, it may trim in these.
TEST(HeapTrimmer, LeavesStepsOfOneSizeAlone) {
  if (!resident_bytes()) GTEST_SKIP() << "this system has no /proc/self/status";
  install_counting_allocator();
  HeapTrimmer trimmer;
  for (int i = 0; i < 30; ++i) {
    take_step(4000);
    const bool trimmed = trimmer.after_step(peak_bytes(at::kCPU));
    EXPECT_TRUE(i < 10 || !trimmed) << i;
  }
}

}  // namespace
}  // namespace compact
