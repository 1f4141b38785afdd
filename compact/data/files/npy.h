// SPDX-License-Identifier: Apache-2.0
// Arrays in numpy's .npy form (NEP 1, versions 1 to 3), read as hostile input.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace compact {

// The array in `bytes`: int8, uint8, int16, int32, int64, float32 or float64, little-endian, in C
// order, of at most 4 dimensions. Throws InputError beginning with `where` on anything else, and
// where the header does not say exactly how many bytes follow.
at::Tensor parse_npy(std::string_view bytes, const std::string& where);

}  // namespace compact
