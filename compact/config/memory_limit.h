// SPDX-License-Identifier: Apache-2.0
// How much memory there is for tensors, and how much the whole process takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace compact {

struct MemoryLimit {
  int64_t bytes = 0;
  std::string source;  // what sets it
};

// The smallest of `budget` (bytes, 0: none), what this process's control groups have left (those
// of versions 1 and 2, ancestors included; file cache that can be dropped counts as left), and the
// machine's available memory. The last two are divided by `processes`, those of a run on this
// machine, and each part keeps a margin for memory outside tensors: 256 MiB or a twentieth,
// whichever is more.
MemoryLimit memory_limit(int64_t budget, int64_t processes = 1);

// The bytes of this process in the machine's memory, code and libraries' buffers included: the most
// so far. Linux only.
std::optional<int64_t> resident_peak();

// oneDNN, and torch's layer over it, each cache compiled kernels, of about a quarter of a megabyte,
// for the last 1,024 shapes of products. Where lengths vary from step to step the caches outgrow
// the tensors; this limits them to the 16 shapes used last, unless ONEDNN_PRIMITIVE_CACHE_CAPACITY
// and LRU_CACHE_CAPACITY say how many. To be called before the process's first product.
void bound_primitive_caches();

}  // namespace compact
