// SPDX-License-Identifier: Apache-2.0
// Counts the sectors of 32 bytes of global memory that warps touch: a memory system moves whole
// sectors, one for all lanes of a warp that touch it in one access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace emulated {

struct Traffic {
  uint64_t launches = 0;
  uint64_t touched = 0;  // sectors, by all accesses
  // Different sectors that are read, and those that are written, by one launch after the other of
  // the same kernel together.
  uint64_t least = 0;
};
void count_sectors(bool on);
// By kernel, since the last call.
std::map<std::string, Traffic> take_traffic();

// For access.cpp: whether it counts; and the running thread's access at instruction `from`.
bool counts_sectors();
void count_access(const std::byte* p, size_t bytes, bool write, const void* from);

}  // namespace emulated
