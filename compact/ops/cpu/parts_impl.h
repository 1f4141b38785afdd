// SPDX-License-Identifier: Apache-2.0
// Work that is done part by part, in buffers of bounded size.
#pragma once

#include <algorithm>
#include <cstdint>

namespace compact {

// Splits n into equal parts of at most `most`. A plan runs the first two and the last only: those
// between take the memory that the second does.
struct Parts {
  int64_t n, size, last;
  bool planned;
  Parts(int64_t n, int64_t most, bool planned) : n(n), planned(planned) {
    const int64_t count = std::max<int64_t>(1, (n + most - 1) / most);
    size = (n + count - 1) / count;
    last = (n - 1) / size * size;
  }
  int64_t size_at(int64_t first) const { return std::min(size, n - first); }
  int64_t after(int64_t first) const {
    return planned && first > 0 && first < last ? last : first + size;
  }
};

}  // namespace compact
