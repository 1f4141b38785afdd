// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/nf4_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "compact/base/check.h"

namespace compact {

Nf4Weights::Nf4Weights(bool nested, at::Device device)
    : nested_(nested), maps_(nf4_maps().to(device)) {}

void Nf4Weights::take(Parameter& p, const std::vector<int64_t>& rows) {
  const at::NoGradGuard no_grad;
  One one{.weight = p.weight.variable_data(),  // whose changes are no new version
          .padded = p.padding.rows + p.padding.columns > 0};
  int64_t first = 0;
  for (const int64_t some : rows) {
    const at::Tensor view = part_of_matrix(one.weight, first, some - p.padding.rows,
                                           one.weight.size(1) - p.padding.columns);
    Nf4 codes = empty_nf4(view.size(0), view.size(1), nested_, maps_);
    if (!view.is_meta()) {
      const std::vector<at::Tensor> to = codes.tensors(),
                                    from = encode_nf4(view, nested_).tensors();
      for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
    }
    one.views.push_back(view);
    one.codes.push_back(std::move(codes));
    first += some;
  }
  p.places.push_back({shared_from_this(), static_cast<int>(all_.size()), /*by_product=*/true});
  all_.push_back(std::move(one));
  free_memory(p.weight);
}

const Nf4* Nf4Weights::find(const at::Tensor& view) const {
  for (const One& one : all_) {
    if (!one.weight.is_alias_of(view)) continue;
    for (size_t i = 0; i < one.views.size(); ++i) {
      if (one.views[i].storage_offset() == view.storage_offset()) return &one.codes[i];
    }
  }
  return nullptr;
}

void Nf4Weights::set(const at::Tensor& view, const Nf4& given) {
  const at::NoGradGuard no_grad;
  const Nf4* const own = find(view);
  TORCH_INTERNAL_ASSERT(own);
  COMPACT_CHECK(
      own->nested() == given.nested() && own->rows == given.rows && own->columns == given.columns,
      "[nf4] must be ", own->rows, " x ", own->columns, own->nested() ? " with" : " without",
      " nested scales, is ", given.rows, " x ", given.columns,
      given.nested() ? " with" : " without");
  if (!maps_given_) maps_.copy_(given.maps);
  maps_given_ = true;
  COMPACT_CHECK(at::equal(maps_.cpu(), given.maps.cpu()),
                "[nf4] all matrices must have one map of codes, and one of nested scales");
  const std::vector<at::Tensor> to = own->tensors(), from = given.tensors();
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

void Nf4Weights::fetch(int group, bool /*backward*/) {
  const std::lock_guard lock(mutex_);
  One& one = all_.at(static_cast<size_t>(group));
  if (one.readers == 0) {
    allocate_memory(one.weight);
    if (one.padded) one.weight.zero_();
    for (size_t i = 0; i < one.views.size(); ++i) one.codes[i].decode(one.views[i]);
  }
  ++one.readers;
}

void Nf4Weights::release(int group) {
  const std::lock_guard lock(mutex_);
  One& one = all_.at(static_cast<size_t>(group));
  if (--one.readers == 0) free_memory(one.weight);
}

std::vector<at::Tensor> Nf4Weights::held(const at::Tensor& weight) const {
  std::vector<at::Tensor> all;
  for (const One& one : all_) {
    if (!one.weight.is_alias_of(weight)) continue;
    for (const Nf4& codes : one.codes) {
      for (const at::Tensor& t : codes.tensors()) all.push_back(t);
    }
  }
  return all;
}

}  // namespace compact
