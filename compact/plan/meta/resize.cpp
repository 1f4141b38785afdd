// SPDX-License-Identifier: Apache-2.0
// Growth of tensors on the meta device: by it functions that fill a tensor of no elements (arange,
// eye, all with `out`) take their memory, of which LibTorch only notes the size there; and sizes
// without signs, which torch's Python makes by way of a second tensor there.
#include <ATen/ATen.h>

#include "compact/plan/meta/library_impl.h"

namespace compact {
namespace {

using at::Tensor;

const Tensor& resize(const Tensor& self, at::IntArrayRef sizes,
                     std::optional<at::MemoryFormat> format) {
  if (self.sizes() == sizes && !format) return self;
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) impl->set_sizes_contiguous(sizes);
  if (format) impl->empty_tensor_restride(*format);
  const int64_t elements = self.numel() == 0 ? 0 : self.storage_offset() + self.numel();
  const size_t bytes = elements * self.dtype().itemsize();
  const c10::Storage& storage = impl->unsafe_storage();
  if (storage.nbytes() < bytes) {
    storage.set_data_ptr_noswap(c10::GetAllocator(c10::kMeta)->allocate(bytes));
    storage.set_nbytes(bytes);
  }
  return self;
}

Tensor absolute(const Tensor& x) {
  return at::empty_like(x, x.options().dtype(c10::toRealValueType(x.scalar_type())));
}
Tensor& absolute_out(const Tensor& x, Tensor& out) {
  if (out.sizes() != x.sizes()) out.resize_(x.sizes());
  return out;
}

}  // namespace

void add_resize(MetaLibrary& library) {
  library.replace("resize_", &resize);
  library.add("abs", &absolute);
  library.add("abs.out", &absolute_out);
}

}  // namespace compact
