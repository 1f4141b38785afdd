// SPDX-License-Identifier: Apache-2.0
// Selection on the meta device: rows, embeddings, ReLU and where.
#include <ATen/ATen.h>
#include <ATen/AccumulateType.h>
#include <ATen/ExpandUtils.h>

#include "compact/codecs/meta_device.h"
#include "compact/plan/meta/library_impl.h"

namespace compact {
namespace {

using at::Tensor;

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  auto sizes = self.sizes().vec();
  sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  return at::empty(sizes, self.options());
}

// Above so many indices the CUDA operation sorts them and sums runs of equal ones in f32.
constexpr int64_t kUnsorted = 3072;

Tensor embedding_dense_backward(const Tensor& grad, const Tensor& indices, int64_t rows, int64_t,
                                bool) {
  const int64_t n = indices.numel(), width = grad.size(-1);
  if (meta_device() != c10::kCUDA || n <= kUnsorted) {
    return at::empty({rows, width}, grad.options());
  }
  const auto list = [&] { return at::empty({n}, indices.options()); };
  const Tensor sorted = list(), order = list();
  {
    const Tensor range = list(), alternate = scratch_on(indices, 2 * indices.nbytes());  // cub's
  }
  Tensor result = at::empty({rows, width}, grad.options());
  const Tensor runs = list(), parts = list(), part_offsets = list(), offsets = list();
  const auto sums = at::toAccumulateType(grad.scalar_type(), c10::DeviceType::CUDA);
  at::empty({n, width}, grad.options().dtype(sums));
  return result;
}

Tensor relu(const Tensor& x) { return at::empty_like(x); }

Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y) {
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(x.sizes(), y.sizes()));
  return at::empty(sizes, x.options().dtype(at::result_type(x, y)));
}

}  // namespace

void add_indexing(MetaLibrary& library) {
  library.add("index_select", &index_select);
  library.replace("embedding_dense_backward", &embedding_dense_backward);
  library.add("relu", &relu);
  library.add("where.self", &where);
}

}  // namespace compact
