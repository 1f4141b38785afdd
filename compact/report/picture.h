// SPDX-License-Identifier: Apache-2.0
// Maps and filters as pictures.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace compact {

// f32 [count, channels, height, width], 1 or 3 channels: each stretched from its least value,
// black, to its greatest, white; a constant one is black. Returns uint8 of the same sizes. Throws
// InputError on other sizes and on values that are not finite.
at::Tensor stretched(const at::Tensor& maps);

// uint8 [count, channels, height, width] side by side, at most `columns` in a row, white between
// them: every pixel is enlarged to a square so that a side has at least `least_side` pixels.
// Returns uint8 [height, width, 3].
at::Tensor tiled(const at::Tensor& maps, int64_t columns, int64_t least_side);

}  // namespace compact
