// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compact/ops/scopes/geometry_impl.h"

namespace compact {
namespace {

struct Bytes {
  int64_t begin, end;
};

// From the first byte to the last, of the dimensions whose stride is below `limit` bytes.
int64_t length(const Geometry& g, int64_t limit) {
  const auto size = static_cast<int64_t>(c10::elementSize(g.type));
  int64_t last = 0;
  for (size_t d = 0; d < g.sizes.size(); ++d) {
    if (g.strides[d] * size < limit) last += (g.sizes[d] - 1) * g.strides[d];
  }
  return (last + 1) * size;
}

// The largest stride in bytes of a dimension with several elements; 0: none.
int64_t outermost(const Geometry& g) {
  int64_t stride = 0;
  for (size_t d = 0; d < g.sizes.size(); ++d) {
    if (g.sizes[d] > 1) stride = std::max(stride, g.strides[d]);
  }
  return stride * static_cast<int64_t>(c10::elementSize(g.type));
}

bool apart(Bytes a, Bytes b) { return a.end <= b.begin || b.end <= a.begin; }

}  // namespace

Geometry Geometry::of(const at::Tensor& t) {
  return {t.scalar_type(), c10::SmallVector<int64_t, 5>(t.sizes().begin(), t.sizes().end()),
          c10::SmallVector<int64_t, 5>(t.strides().begin(), t.strides().end()), t.storage_offset()};
}

Geometry Geometry::flat(at::ScalarType type, int64_t elements) {
  return {type, {elements}, {1}, 0};
}

int64_t Geometry::bytes() const {
  int64_t elements = 1;
  for (const int64_t n : sizes) elements *= n;
  return elements * static_cast<int64_t>(c10::elementSize(type));
}

bool Geometry::same_layout(const at::Tensor& t) const {
  return t.scalar_type() == type && t.sizes() == at::IntArrayRef(sizes) &&
         t.strides() == at::IntArrayRef(strides) && t.storage_offset() == offset;
}

int64_t row_of(const Geometry& g, int64_t least) {
  const int64_t all = c10::multiply_integers(g.sizes);
  int64_t row = 1;
  while (row < least) {
    // The next dimension begins where the ones within it end.
    size_t next = 0;
    while (next < g.sizes.size() && (g.sizes[next] == 1 || g.strides[next] != row)) ++next;
    if (next == g.sizes.size()) return all;
    row *= g.sizes[next];
  }
  return row;
}

bool are_disjoint(const Geometry& a, const Geometry& b) {
  if (a.bytes() == 0 || b.bytes() == 0) return true;
  constexpr int64_t kAll = INT64_MAX;
  const auto begin = [](const Geometry& g) {
    return g.offset * static_cast<int64_t>(c10::elementSize(g.type));
  };
  const int64_t at = begin(a), bt = begin(b);
  if (apart({at, at + length(a, kAll)}, {bt, bt + length(b, kAll)})) return true;
  // Columns of one matrix: rows of the same length, of which each has a part of its own.
  const int64_t row = outermost(a);
  if (row == 0 || row != outermost(b)) return false;
  const int64_t a_in = at % row, b_in = bt % row;
  const Bytes a_part{a_in, a_in + length(a, row)}, b_part{b_in, b_in + length(b, row)};
  return a_part.end <= row && b_part.end <= row && apart(a_part, b_part);
}

bool has_elements(const at::Tensor& t) {
  static const auto kWrapped =
      c10::functorch_transforms_ks |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                           c10::DispatchKey::ZeroTensor});
  return t.defined() && t.layout() == at::kStrided && t.has_storage() && !t.is_nested() &&
         !t.is_quantized() && !t.is_inference() && !t.key_set().has_any(kWrapped) &&
         !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
         (t.is_cpu() || t.is_cuda() || t.is_meta());
}

bool is_plain(const at::Tensor& t) { return has_elements(t) && !t.is_conj() && !t.is_neg(); }

at::Tensor view_of(const c10::Storage& storage, const Geometry& geometry) {
  at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage),
      c10::DispatchKeySet(c10::computeDispatchKey(geometry.type, at::kStrided, storage.device())),
      c10::scalarTypeToTypeMeta(geometry.type));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(geometry.sizes, geometry.strides, geometry.offset);
  return t;
}

}  // namespace compact
