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

}  // namespace compact
