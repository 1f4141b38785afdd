// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/weight_home.h"

#include <c10/core/Allocator.h>

#include <utility>

namespace compact {
namespace {

c10::StorageImpl& storage_of(const at::Tensor& t) { return *t.storage().unsafeGetStorageImpl(); }

}  // namespace

void free_memory(const at::Tensor& t) {
  storage_of(t).set_data_ptr_noswap(at::DataPtr(nullptr, t.device()));
  storage_of(t).set_nbytes(0);
}

void allocate_memory(const at::Tensor& t) {
  const auto bytes = static_cast<size_t>(t.nbytes());
  storage_of(t).set_data_ptr_noswap(c10::GetAllocator(t.device().type())->allocate(bytes));
  storage_of(t).set_nbytes(bytes);
}

void exchange_memory(const at::Tensor& a, const at::Tensor& b) {
  TORCH_INTERNAL_ASSERT(a.storage().nbytes() == b.storage().nbytes());
  at::DataPtr of_b = storage_of(b).set_data_ptr(at::DataPtr(nullptr, b.device()));
  storage_of(b).set_data_ptr_noswap(storage_of(a).set_data_ptr(std::move(of_b)));
}

at::Tensor part_of_matrix(const at::Tensor& matrix, int64_t row, int64_t rows, int64_t columns) {
  at::Tensor part = matrix.detach();  // narrow() looks for memory
  at::TensorImpl& impl = *part.unsafeGetTensorImpl();
  impl.set_allow_tensor_metadata_change(true);
  impl.set_storage_offset(matrix.storage_offset() + row * matrix.stride(0));
  impl.set_sizes_and_strides({rows, columns}, matrix.strides());
  return part;
}

}  // namespace compact
