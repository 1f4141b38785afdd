// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "compact/ops/scopes/fused_attention_impl.h"
#include "compact/ops/scopes/held_tensor_impl.h"

namespace compact {

bool HeldTensor::is_rounded() const {
  if (!memory_) return false;
  if (memory_->node) return memory_->node->is_rounded();
  const std::lock_guard lock(memory_->mutex);
  return memory_->encoded.defined() && memory_->treatment.content() != Content::kExact;
}

at::Tensor HeldTensor::unpack() const {
  if (attention_) return attention_->make(values_);
  if (memory_->node) return memory_->node->unpack();
  const at::NoGradGuard no_grad;
  std::unique_lock lock(memory_->mutex);
  const Encoded encoded = memory_->encoded;
  at::Tensor x = memory_->plain;
  lock.unlock();
  if (encoded.defined()) {
    x = encoded.restore();
    if (flat_) return x.as_strided(sizes_, strides_);
    // Rows that lie apart in memory were turned before they were put into codes.
    const bool turned = !x.is_contiguous() && x.is_non_overlapping_and_dense();
    return x.sizes() == sizes_ && !turned ? x : x.as_strided({x.numel()}, {1}).view(sizes_);
  }
  TORCH_CHECK(x._version() == memory_->version,
              "[saved tensors] one of the tensors needed for gradients was changed in place: ",
              x.sizes(), " is at version ", x._version(), ", expected ", memory_->version);
  if (memory_->copy) {
    const CopiedFrom& copy = *memory_->copy;
    x = at::empty_strided(copy.sizes, copy.strides, x.options().dtype(copy.type)).copy_(x);
  }
  // Another view of the same memory may have been saved first.
  const bool same = !strided_ || (x.sizes() == sizes_ && x.strides() == strides_);
  return same ? x : x.as_strided(sizes_, strides_, offset_);
}

}  // namespace compact
