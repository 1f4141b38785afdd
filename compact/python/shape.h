// SPDX-License-Identifier: Apache-2.0
// Shapes and types alone, as meta tensors that take no memory, not even where those are counted.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace compact {

inline at::Tensor shape(at::IntArrayRef sizes, at::ScalarType type,
                        at::OptionalIntArrayRef strides = {}) {
  at::Tensor t = at::empty({0}, at::device(at::kMeta).dtype(type));
  const std::vector<int64_t> none(sizes.size(), 0);
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides ? *strides : none);
  return t;
}
inline at::Tensor shape_of(const at::Tensor& t) {
  return shape(t.sizes(), t.scalar_type(), t.strides());
}
// A meta tensor of that shape, which counts.
inline at::Tensor of_shape(const at::Tensor& t) {
  return t.defined() ? at::empty(t.sizes(), t.options()) : at::Tensor();
}

}  // namespace compact
