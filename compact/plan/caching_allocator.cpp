// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/caching_allocator.h"

#include <ATen/Context.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace compact {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kRound = 512, kSmall = kMiB, kSmallSegment = 2 * kMiB;
constexpr int64_t kLargeSegment = 20 * kMiB, kLarge = 10 * kMiB;

constexpr uintptr_t kCallersWorkspace = 0, kAutogradsWorkspace = 1;  // no addresses of others

int64_t whole_multiple(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// The trace with a number of its own for each block that it allocates, in place of an address.
MemoryTrace numbered(MemoryTrace trace) {
  std::unordered_map<uintptr_t, uintptr_t> numbers;  // of allocated blocks, by address
  uintptr_t next = UINTPTR_MAX;                      // no address of memory
  for (MemoryEvent& e : trace.events) {
    if (e.kind == MemoryEventKind::kAllocate) {
      e.address = numbers[e.address] = next--;
    } else if (e.kind == MemoryEventKind::kFree) {
      if (const auto number = numbers.extract(e.address)) e.address = number.mapped();
    }
  }
  return trace;
}

int64_t segment_bytes(int64_t bytes) {
  if (bytes <= kSmall) return kSmallSegment;
  if (bytes < kLarge) return kLargeSegment;
  return whole_multiple(bytes, kSmallSegment);
}

}  // namespace

int64_t cublas_workspace_bytes(int capability) {
  const bool large = capability >= 90 || at::globalContext().deterministicAlgorithms();
  return large ? 32 * kMiB : 8 * kMiB + kMiB / 8;
}

void CachingAllocatorModel::set_free(Place block) {
  block->free = true;
  free_[block->small].emplace(std::pair(block->bytes, block->begin), block);
}

void CachingAllocatorModel::set_used(Place block) {
  free_[block->small].erase({block->bytes, block->begin});
  block->free = false;
}

void CachingAllocatorModel::allocate(uintptr_t address, int64_t requested) {
  const int64_t bytes = std::max(kRound, whole_multiple(requested, kRound));
  const bool small = bytes <= kSmall;
  const auto found = free_[small].lower_bound({bytes, 0});
  Place best;
  if (found == free_[small].end()) {
    const int64_t segment = segment_bytes(bytes);
    best = blocks_.insert(blocks_.end(), {segment, reserved_, segments_++, false, small});
    reserved_ += segment;
    most_ = std::max(most_, reserved_);
  } else {
    best = found->second;
    set_used(best);
  }
  const int64_t rest = best->bytes - bytes;
  if (small ? rest >= kRound : rest > kSmall) {
    best->bytes = bytes;
    set_free(
        blocks_.insert(std::next(best), {rest, best->begin + bytes, best->segment, false, small}));
  }
  at_[address] = best;
}

void CachingAllocatorModel::free(uintptr_t address) {
  const auto found = at_.find(address);
  if (found == at_.end()) return;
  Place block = found->second;
  at_.erase(found);
  // One block with free neighbours of its segment.
  const auto take = [&](Place from, Place to) {
    if (from->free) set_used(from);
    to->bytes += from->bytes;
    blocks_.erase(from);
  };
  const Place next = std::next(block);
  if (next != blocks_.end() && next->free && next->segment == block->segment) take(next, block);
  if (block != blocks_.begin()) {
    const Place before = std::prev(block);
    if (before->free && before->segment == block->segment) {
      set_used(before);
      take(block, before);
      block = before;
    }
  }
  set_free(block);
}

int64_t CachingAllocatorModel::allocate_workspaces(int capability, bool late) {
  const int64_t bytes = cublas_workspace_bytes(capability);
  allocate(kCallersWorkspace, bytes);
  if (late) {
    late_workspace_ = bytes;
  } else {
    allocate(kAutogradsWorkspace, bytes);
  }
  return kProductThreads * bytes;
}

void CachingAllocatorModel::replay(const MemoryTrace& trace) {
  bool backward = false;
  for (const MemoryEvent& e : trace.events) {
    if (e.kind == MemoryEventKind::kForwardBegin) backward = false;
    if (e.kind == MemoryEventKind::kForwardEnd) backward = true;
    if (e.kind == MemoryEventKind::kFree) free(e.address);
    if (e.kind == MemoryEventKind::kAllocate && e.bytes > 0 && !at_.contains(e.address)) {
      allocate(e.address, e.bytes);
    }
    if (e.kind == MemoryEventKind::kProduct && backward && late_workspace_ > 0) {
      allocate(kAutogradsWorkspace, std::exchange(late_workspace_, 0));
    }
  }
}

void CachingAllocatorModel::replay_steps(const MemoryTrace& step) {
  const MemoryTrace blocks = numbered(step);
  for (int i = 0; i < 3; ++i) replay(blocks);
}

}  // namespace compact
