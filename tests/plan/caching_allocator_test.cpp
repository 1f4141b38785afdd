// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/caching_allocator.h"

#include <gtest/gtest.h>

namespace compact {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(CachingAllocator, SegmentsByTheRules) {
  CachingAllocatorModel a;
  a.allocate(1, 1);  // 512 B of a segment of 2 MiB
  EXPECT_EQ(a.most_reserved(), 2 * kMiB);
  a.allocate(2, kMiB);  // still small
  EXPECT_EQ(a.most_reserved(), 2 * kMiB);
  a.allocate(3, kMiB + 1);  // 20 MiB
  EXPECT_EQ(a.most_reserved(), 22 * kMiB);
  a.allocate(4, 9 * kMiB);
  EXPECT_EQ(a.most_reserved(), 22 * kMiB);
  a.allocate(5, 11 * kMiB - 1);  // its own, rounded to 2 MiB
  EXPECT_EQ(a.most_reserved(), 34 * kMiB);
}

TEST(CachingAllocator, TakesTheSmallestThatFitsAndJoinsNeighbours) {
  CachingAllocatorModel a;
  a.allocate(1, 40 * kMiB);
  a.allocate(2, 30 * kMiB);
  a.free(1);
  a.free(2);
  a.allocate(3, 28 * kMiB);  // of the 30
  a.allocate(4, 39 * kMiB);  // of the 40
  EXPECT_EQ(a.most_reserved(), 70 * kMiB);
  a.free(4);
  a.allocate(5, 20 * kMiB);
  a.allocate(6, 20 * kMiB);  // both halves of the 40
  a.free(5);
  a.free(6);
  a.allocate(7, 40 * kMiB);  // joined again
  EXPECT_EQ(a.most_reserved(), 70 * kMiB);
}

TEST(CachingAllocator, FragmentationReservesMore) {
  CachingAllocatorModel a;
  a.allocate(1, 40 * kMiB);
  a.free(1);
  a.allocate(2, 12 * kMiB);
  a.allocate(3, 30 * kMiB);  // what is left of the 40 is too small
  EXPECT_EQ(a.most_reserved(), 70 * kMiB);
}

MemoryTrace step_of(int64_t logits) {
  using enum MemoryEventKind;
  MemoryTrace step;
  step.events = {
      {kForwardBegin}, {kAllocate, 10, logits}, {kProduct}, {kForwardEnd},
      {kFree, 10},     {kAllocate, 11, 8},      {kProduct}, {kFree, 11},
  };
  return step;
}

// As measured on an H100: the block that the forward pass has freed is split for good by the
// workspace of autograd's thread, so that the second step needs another one.
TEST(CachingAllocator, AWorkspaceThatComesLateSplitsABlock) {
  constexpr int64_t kWorkspace = 32 * kMiB, kLogits = 4000 * kMiB;
  for (const bool late : {false, true}) {
    CachingAllocatorModel a;
    EXPECT_EQ(a.allocate_workspaces(90, late), 2 * kWorkspace);
    a.replay(step_of(kLogits));
    const int64_t small = 2 * kMiB;
    EXPECT_EQ(a.most_reserved(), (late ? 1 : 2) * kWorkspace + kLogits + small);
    a.replay_steps(step_of(kLogits));
    EXPECT_EQ(a.most_reserved(), (late ? kWorkspace + kLogits : 2 * kWorkspace) + kLogits + small);
  }
}

// A block at an address that the step used before is not taken for the earlier block.
TEST(CachingAllocator, AddressesAreGivenOutAgain) {
  using enum MemoryEventKind;
  MemoryTrace step;
  step.events = {{kAllocate, 10, 100 * kMiB}, {kFree, 10}, {kAllocate, 10, 30 * kMiB}};
  CachingAllocatorModel a;
  a.replay_steps(step);
  EXPECT_EQ(a.most_reserved(), 200 * kMiB);  // the 30 stay in the first 100
}

}  // namespace
}  // namespace compact
