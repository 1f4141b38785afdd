// SPDX-License-Identifier: Apache-2.0
// How a tensor lies in its storage.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace compact {

struct Geometry {
  at::ScalarType type = at::kByte;
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;  // in elements

  static Geometry of(const at::Tensor& t);
  static Geometry flat(at::ScalarType type, int64_t elements);
  int64_t bytes() const;  // of its elements
  bool same_layout(const at::Tensor& t) const;
};

// The number of elements of the innermost dimensions that have at least `least` together; of all
// dimensions where there are gaps between them, or fewer elements.
int64_t row_of(const Geometry& g, int64_t least);

// Whether no byte of a storage belongs to both. False where that is not seen at once.
bool are_disjoint(const Geometry& a, const Geometry& b);

// Whether the tensor is a view of a storage that operations read and write openly, and whether it
// is nothing but elements there, neither conjugated nor negated.
bool has_elements(const at::Tensor& t);
bool is_plain(const at::Tensor& t);

// A tensor over the storage, without history and with a version of its own.
at::Tensor view_of(const c10::Storage& storage, const Geometry& geometry);

}  // namespace compact
