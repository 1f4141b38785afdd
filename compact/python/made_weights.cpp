// SPDX-License-Identifier: Apache-2.0
#include "compact/python/made_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "compact/base/check.h"

namespace compact {
namespace {

at::Tensor without_memory(at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Tensor t = at::empty({0}, options);
  t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return t;
}

}  // namespace

at::Tensor MadeWeights::add(const at::Tensor& source, at::ScalarType type) {
  const at::TensorOptions options = at::device(source.device()).dtype(type);
  const at::Tensor value = without_memory(source.sizes(), options);
  all_.push_back({is_provided(source) ? source : source.detach(), value});
  return value;
}

void MadeWeights::fetch(int group, bool) {
  const std::lock_guard lock(mutex_);
  One& one = all_.at(static_cast<size_t>(group));
  if (one.users == 0) {
    const at::NoGradGuard no_grad;
    const bool provided = is_provided(one.source);
    const at::Tensor made = provided ? one.source.dequantize() : one.source;
    TORCH_CHECK(made.sizes() == one.value.sizes() && made.device() == one.value.device() &&
                    !is_provided(made),
                "[block] a weight of ", one.value.sizes(), " on ", one.value.device(),
                " was given as ", made.sizes(), " on ", made.device());
    one.value.set_data(made.to(one.value.scalar_type()));
  }
  ++one.users;  // not where it failed
}

void MadeWeights::release(int group) {
  const std::lock_guard lock(mutex_);
  One& one = all_.at(static_cast<size_t>(group));
  if (--one.users == 0) one.value.set_data(without_memory(one.value.sizes(), one.value.options()));
}

}  // namespace compact
