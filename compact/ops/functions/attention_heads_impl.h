// SPDX-License-Identifier: Apache-2.0
// Heads as LibTorch's kernels of attention take them and give them back.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <optional>

namespace compact {

// The kernels take any strides except the last, which must be 1 and which they do not check.
inline at::Tensor dense_rows(const at::Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

// [batch, heads, sequence, dim] -> [batch, heads, sequence, width], zeros after the end of each
// head.
inline at::Tensor padded(const at::Tensor& t, int64_t width) {
  if (t.size(3) == width) return dense_rows(t);
  const at::Tensor wide =
      at::zeros({t.size(0), t.size(2), t.size(1), width}, t.options()).transpose(1, 2);
  wide.narrow(3, 0, t.size(3)).copy_(t);
  return wide;
}

// The inverse, in memory [batch, sequence, heads, dim].
inline at::Tensor unpadded(const at::Tensor& t, int64_t dim) {
  if (t.size(3) == dim) return t;
  return t.narrow(3, 0, dim).transpose(1, 2).contiguous().transpose(1, 2);
}

inline double scale_of(int64_t dim, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(dim)));
}

}  // namespace compact
