// SPDX-License-Identifier: Apache-2.0
// A model of torch's CUDA caching allocator: what it reserves for a sequence of allocations. Rules
// of its documentation: sizes are rounded up to 512 B; up to 1 MiB comes from segments of 2 MiB,
// below 10 MiB from segments of 20 MiB, more from segments of their own rounded up to 2 MiB; the
// smallest free block that fits is taken and split; neighbours that are free are joined.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <unordered_map>
#include <utility>

#include "compact/ops/memory/memory_trace.h"

namespace compact {

// The workspace that cuBLAS takes for every thread that makes products, on a GPU of a capability
// (10 * major + minor). Where torch must be deterministic, as it is now, it is of one size on all
// GPUs.
int64_t cublas_workspace_bytes(int capability);
// The threads of a training step that make products: the one that calls, and autograd's.
inline constexpr int kProductThreads = 2;

class CachingAllocatorModel {
 public:
  void allocate(uintptr_t address, int64_t bytes);
  void free(uintptr_t address);
  // The workspaces of all threads, which stay. Returns their bytes. `late`: autograd's
  // thread allocates its own at its first backward product, from memory free at that moment.
  int64_t allocate_workspaces(int capability, bool late);
  // Blocks that the trace leaves allocated are not allocated again by another replay.
  void replay(const MemoryTrace& trace);
  // A step finds what the one before it left: the second may reserve more than the first. What the
  // step allocates at an address that it has freed is another block.
  void replay_steps(const MemoryTrace& step);
  int64_t most_reserved() const { return most_; }

 private:
  struct Block {
    int64_t bytes, begin;  // segments lie one after the other
    int64_t segment;
    bool free, small;
  };
  using Place = std::list<Block>::iterator;
  // The free blocks of a pool by size, then by place.
  using Free = std::map<std::pair<int64_t, int64_t>, Place>;
  void set_free(Place block);
  void set_used(Place block);

  std::list<Block> blocks_;  // by place
  Free free_[2];             // large, small
  std::unordered_map<uintptr_t, Place> at_;
  int64_t segments_ = 0, reserved_ = 0, most_ = 0;
  int64_t late_workspace_ = 0;
};

}  // namespace compact
