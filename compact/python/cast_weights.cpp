// SPDX-License-Identifier: Apache-2.0
#include "compact/python/cast_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace compact {

at::Tensor CastWeights::add(const at::Tensor& source) {
  const at::Tensor value = at::empty({0}, source.options().dtype(type_).requires_grad(false));
  all_.push_back({source.detach(), value});
  return value;
}

void CastWeights::fetch(int group, bool) {
  const std::lock_guard lock(mutex_);
  One& one = all_.at(static_cast<size_t>(group));
  if (one.users == 0) {
    const at::NoGradGuard no_grad;
    one.value.set_data(one.source.to(type_));
  }
  ++one.users;  // not where the cast failed
}

void CastWeights::release(int group) {
  const std::lock_guard lock(mutex_);
  One& one = all_.at(static_cast<size_t>(group));
  if (--one.users == 0) one.value.set_data(at::empty({0}, one.value.options()));
}

}  // namespace compact
