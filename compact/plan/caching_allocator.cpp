// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/caching_allocator.h"

#include <algorithm>
#include <iterator>

namespace compact {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kRound = 512, kSmall = kMiB, kSmallSegment = 2 * kMiB;
constexpr int64_t kLargeSegment = 20 * kMiB, kLarge = 10 * kMiB;

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int64_t segment_bytes(int64_t bytes) {
  if (bytes <= kSmall) return kSmallSegment;
  if (bytes < kLarge) return kLargeSegment;
  return round_up(bytes, kSmallSegment);
}

}  // namespace

void CachingAllocatorModel::allocate(uintptr_t address, int64_t requested) {
  const int64_t bytes = std::max(kRound, round_up(requested, kRound));
  const bool small = bytes <= kSmall;
  Place best = blocks_.end();
  for (auto b = blocks_.begin(); b != blocks_.end(); ++b) {
    if (!b->free || b->small != small || b->bytes < bytes) continue;
    if (best == blocks_.end() || b->bytes < best->bytes) best = b;
  }
  if (best == blocks_.end()) {
    const int64_t segment = segment_bytes(bytes);
    best = blocks_.insert(blocks_.end(), {segment, segments_++, true, small});
    reserved_ += segment;
    most_ = std::max(most_, reserved_);
  }
  const int64_t rest = best->bytes - bytes;
  if (small ? rest >= kRound : rest > kSmall) {
    blocks_.insert(std::next(best), {rest, best->segment, true, small});
    best->bytes = bytes;
  }
  best->free = false;
  at_[address] = best;
}

void CachingAllocatorModel::free(uintptr_t address) {
  const auto found = at_.find(address);
  if (found == at_.end()) return;
  Place block = found->second;
  at_.erase(found);
  block->free = true;
  const Place next = std::next(block);
  if (next != blocks_.end() && next->free && next->segment == block->segment) {
    block->bytes += next->bytes;
    blocks_.erase(next);
  }
  if (block == blocks_.begin()) return;
  const Place before = std::prev(block);
  if (before->free && before->segment == block->segment) {
    before->bytes += block->bytes;
    blocks_.erase(block);
  }
}

void CachingAllocatorModel::replay(const MemoryTrace& trace) {
  for (const MemoryEvent& e : trace.events) {
    if (e.kind == MemoryEventKind::kAllocate) allocate(e.address, e.bytes);
    if (e.kind == MemoryEventKind::kFree) free(e.address);
  }
}

}  // namespace compact
