// SPDX-License-Identifier: Apache-2.0
// Which elements of a tensor stand beside each other in codes: groups lie within rows of one token,
// of one channel, or of all memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace compact {

enum class Along : uint8_t { kMemory, kLast, kChannels };

// Memory seen as [samples, outer, rows, inner]: each [s, :, i, :] is a row.
struct CodeRows {
  int64_t outer = 1, rows = 1, inner = 0, samples = 1;

  int64_t length() const { return outer * inner; }  // of a row
  int64_t count() const { return samples * rows; }
  bool are_channels() const { return outer > 1 && samples == 1; }
  // Whether no row of these has elements of two rows of `others`, in the same memory.
  bool refine(const CodeRows& others) const {
    if (others.count() < 2) return true;
    const int64_t next = rows * inner, others_next = others.rows * others.inner;
    return count() > 1 && others.inner % inner == 0 &&
           (outer == 1 ||
            (next % others_next == 0 && (others.outer * others_next) % (outer * next) == 0));
  }
};

// Rows of a dense tensor as it lies in memory: one of all; those along the last dimension; or all
// that has one index of the second dimension (of fewer than two: one of all), whatever the order of
// dimensions in memory.
CodeRows rows_of(const at::Tensor& dense, Along along);

// A dimension of a view, and whether elements of two of its indices must not share a scale.
struct CodedDimension {
  int64_t size, stride;
  bool apart;
};
// Rows of memory of so many elements of which none has elements of a view, `offset` elements in,
// that must not share a scale. nullopt: its dimensions overlap, or do not end where others begin.
std::optional<CodeRows> rows_apart(std::vector<CodedDimension> view, int64_t offset,
                                   int64_t elements);

// `flat`, or a contiguous copy, as codecs take it whose groups lie in such rows: along=channels
// where they are channels, along=last elsewhere.
at::Tensor in_rows(const at::Tensor& flat, const CodeRows& rows);

}  // namespace compact
