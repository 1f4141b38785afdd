// SPDX-License-Identifier: Apache-2.0
// Selection on the meta device: rows, embeddings, ReLU and where.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "compact/plan/meta/library_impl.h"

namespace compact {
namespace {

using at::Tensor;

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  auto sizes = self.sizes().vec();
  sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  return at::empty(sizes, self.options());
}

Tensor embedding_dense_backward(const Tensor& grad, const Tensor&, int64_t rows, int64_t, bool) {
  return at::empty({rows, grad.size(-1)}, grad.options());
}

Tensor relu(const Tensor& x) { return at::empty_like(x); }

Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y) {
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(x.sizes(), y.sizes()));
  return at::empty(sizes, x.options().dtype(at::result_type(x, y)));
}

}  // namespace

void add_indexing(MetaLibrary& library) {
  library.add("index_select", &index_select);
  library.add("embedding_dense_backward", &embedding_dense_backward);
  library.add("relu", &relu);
  library.add("where.self", &where);
}

}  // namespace compact
