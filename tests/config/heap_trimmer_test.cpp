// SPDX-License-Identifier: Apache-2.0
#include "compact/config/heap_trimmer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "compact/config/memory_limit.h"
#include "compact/ops/memory.h"

namespace compact {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
constexpr bool kOwnHeap = false;
#else
constexpr bool kOwnHeap = true;
#endif

// A step of tensors of `kib` and small ones between them that stay until the next step, as what a
// library caches by shape does.
class Steps {
 public:
  void step(int64_t kib) {
    reset_peak(at::kCPU);
    std::vector<at::Tensor> live;
    for (int i = 0; i < 12; ++i) {
      live.push_back(at::ones({kib << 10}, at::kByte));
      kept_.push_back(at::ones({1 << 10}, at::kByte));
    }
    if (kept_.size() > 60) kept_.erase(kept_.begin(), kept_.begin() + 12);
  }

 private:
  std::vector<at::Tensor> kept_;
};

TEST(HeapTrimmer, KeepsAProcessNearItsTensorsWhereSizesChange) {
  if (!kOwnHeap) GTEST_SKIP() << "the heap is not glibc's";
  if (!resident_bytes()) GTEST_SKIP() << "this system has no /proc/self/status";
  install_counting_allocator();
  Steps steps;
  HeapTrimmer trimmer;
  std::mt19937 random(1);
  int trims = 0;
  int64_t highest = 0, first = 0;
  for (int i = 0; i < 60; ++i) {
    steps.step(i == 0 ? 8192 : 200 + static_cast<int64_t>(random() % 8000));
    trims += trimmer.after_step(peak_bytes(at::kCPU));
    if (i == 0) first = *resident_bytes();
    highest = std::max(highest, *resident_bytes());
  }
  EXPECT_GT(trims, 0);
  EXPECT_LE(highest, first + (int64_t{64} << 20));
}

TEST(HeapTrimmer, LeavesStepsOfOneSizeAlone) {
  if (!resident_bytes()) GTEST_SKIP() << "this system has no /proc/self/status";
  install_counting_allocator();
  Steps steps;
  HeapTrimmer trimmer;
  for (int i = 0; i < 30; ++i) {
    steps.step(4000);
    EXPECT_FALSE(trimmer.after_step(peak_bytes(at::kCPU))) << i;
  }
}

}  // namespace
}  // namespace compact
