// SPDX-License-Identifier: Apache-2.0
#include "compact/config/heap_trimmer.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>

#include "compact/config/memory_limit.h"

namespace compact {

bool HeapTrimmer::after_step(int64_t peak) {
#ifdef __GLIBC__
  const std::optional<int64_t> resident = resident_bytes();
  if (!resident) return false;
  most_ = std::max(most_, peak);
  if (!beside_) beside_ = *resident - peak;
  if (trimmed_ || !settled_) settled_ = *resident;
  trimmed_ = false;
  const int64_t allowed = std::max<int64_t>(int64_t{32} << 20, most_ / 8);
  // The second condition is for memory that a trim does not free: it is not repeated in vain.
  if (*resident > *beside_ + most_ + allowed && *resident > settled_ + allowed) {
    malloc_trim(0);
    trimmed_ = true;
  }
#endif
  return trimmed_;
}

}  // namespace compact
