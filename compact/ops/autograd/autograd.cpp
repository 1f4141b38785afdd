// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/autograd/autograd.h"

#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "compact/base/check.h"

namespace compact {

void connect(const NodePtr& node, std::span<const at::Tensor> inputs) {
  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    edges.push_back(input.defined() && input.requires_grad()
                        ? torch::autograd::impl::gradient_edge(input)
                        : torch::autograd::Edge());
  }
  node->set_next_edges(std::move(edges));
}

void check_plain(const char* who, const at::Tensor& t) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kFunctorch(
      {DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper,
       DispatchKey::BatchedNestedTensor, DispatchKey::Functionalize});
  constexpr c10::DispatchKeySet kOther(
      {DispatchKey::Python, DispatchKey::Negative, DispatchKey::ZeroTensor});
  if (!t.defined()) return;
  const c10::DispatchKeySet keys = t.key_set();
  COMPACT_CHECK(!keys.has_any(kFunctorch), "[", who,
                "] takes no tensors of functorch (vmap, grad, jvp): they cannot "
                "transform it");
  COMPACT_CHECK(!keys.has_any(kOther) && t.layout() == at::kStrided, "[", who,
                "] takes tensors of plain memory only, no subclass (DTensor, FakeTensor), sparse, "
                "negated or zero tensor");
  COMPACT_CHECK(!t._fw_grad(/*level=*/0).defined(), "[", who,
                "] has no forward-mode derivative: the tangent of its input would be lost");
}

bool any_requires_grad(std::span<const at::Tensor> tensors) {
  return std::ranges::any_of(tensors,
                             [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

int64_t bytes_of(std::span<const at::Tensor> tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& t : tensors) {
    if (t.defined()) bytes += static_cast<int64_t>(t.nbytes());
  }
  return bytes;
}

bool alone(const at::Tensor& t) {
  return t.defined() && t.use_count() == 1 && t.storage().use_count() == 1;
}

bool owned(const at::Tensor& t) { return alone(t) && t.is_contiguous(); }

void VersionCheck::add(const at::Tensor& t) {
  added_.push_back({t.detach(), decltype(Added::tensor)(t.getIntrusivePtr()),
                    static_cast<uint32_t>(t._version())});
}

void VersionCheck::check(const char* who, std::string_view of) const {
  const auto what = [&](const at::Tensor& t) {
    return cat("[", who, "] ", of.empty() ? "" : cat("`", of, "`: "),
               "a tensor that the backward pass reads, ", t.sizes(), ", was ");
  };
  for (const auto& [value, tensor, version] : added_) {
    TORCH_CHECK(static_cast<uint32_t>(value._version()) == version, what(value),
                "changed in place: it is at version ", value._version(), ", expected ", version);
    const auto now = tensor.lock();
    TORCH_CHECK(
        !now || now->storage().unsafeGetStorageImpl() == value.storage().unsafeGetStorageImpl(),
        what(value), "given other memory since the forward pass (`.data = ...`)");
  }
}

}  // namespace compact
