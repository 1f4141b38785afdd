// SPDX-License-Identifier: Apache-2.0
// How much memory there is for tensors.
#pragma once

#include <cstdint>
#include <string>

namespace compact {

struct MemoryLimit {
  int64_t bytes = 0;
  std::string source;  // what sets it
};

// The smallest of `budget` (bytes, 0: none), what this process's control groups have left (those
// of versions 1 and 2, ancestors included; file cache that can be dropped counts as left), and the
// machine's available memory.
MemoryLimit memory_limit(int64_t budget);

}  // namespace compact
