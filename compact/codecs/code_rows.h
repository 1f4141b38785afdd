// SPDX-License-Identifier: Apache-2.0
// Which elements of a tensor stand beside each other in codes: groups lie within rows of one token,
// of one channel, or of all memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace compact {

enum class Along : uint8_t { kMemory, kLast, kChannels };

// Memory seen as [outer, rows, inner]: row i is its [:, i, :].
struct CodeRows {
  int64_t outer = 1, rows = 1, inner = 0;

  int64_t length() const { return outer * inner; }  // of a row
  // Whether no row of these has elements of two rows of `others`, in the same memory.
  bool refine(const CodeRows& others) const {
    return others.rows < 2 || (rows > 1 && others.inner % inner == 0 &&
                               (rows * inner) % (others.rows * others.inner) == 0);
  }
};

// Rows of a dense tensor as it lies in memory: one of all; those along the last dimension, of a
// contiguous one; or all that has one index of the second dimension, whatever the order of
// dimensions in memory (of fewer than two: one of all).
CodeRows rows_of(const at::Tensor& dense, Along along);

}  // namespace compact
