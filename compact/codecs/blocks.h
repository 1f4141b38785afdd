// SPDX-License-Identifier: Apache-2.0
// Work on large matrices in blocks of rows, so that f32 copies of them stay small.
#pragma once

#include <algorithm>
#include <cstdint>

#include "compact/codecs/meta_device.h"

namespace compact {

// Elements of an f32 block: 4 MiB; 64 MiB where each block is a few launches of a GPU.
inline constexpr int64_t kBlockElements = int64_t{1} << 20;
inline constexpr int64_t kGpuBlockElements = int64_t{1} << 24;
inline int64_t block_elements(const at::Tensor& t) {
  return device_type_of(t) == at::kCUDA ? kGpuBlockElements : kBlockElements;
}

// Rows of `width` elements in a block, at least 1.
inline int64_t block_rows(int64_t width, int64_t elements = kBlockElements) {
  return std::max<int64_t>(1, elements / std::max<int64_t>(1, width));
}

// Calls body(begin, length) on blocks that cover [begin, end) in order.
template <class Body>
void for_blocks(int64_t begin, int64_t end, int64_t step, Body body) {
  for (int64_t i = begin; i < end; i += step) body(i, std::min(step, end - i));
}

// Whether nothing is computed with t, and only the memory of a plan for the CPU is counted. Blocks
// of one length take the same.
inline bool only_counted(const at::Tensor& t) { return t.is_meta() && meta_device() == c10::kCPU; }

// The same for a body that frees all it takes: where t is only counted, the first block and the
// last are enough.
template <class Body>
void for_alike_blocks(const at::Tensor& t, int64_t begin, int64_t end, int64_t step, Body body) {
  if (only_counted(t) && end - begin > 2 * step) {
    body(begin, step);
    begin += (end - begin - 1) / step * step;
  }
  for_blocks(begin, end, step, body);
}

}  // namespace compact
