// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/autograd.h"

#include <torch/csrc/autograd/variable.h>

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

bool any_requires_grad(const at::Tensor& x, std::span<const at::Tensor> more) {
  if (x.requires_grad()) return true;
  for (const at::Tensor& t : more) {
    if (t.defined() && t.requires_grad()) return true;
  }
  return false;
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

void VersionCheck::add(const at::Tensor& t) { seen_.emplace_back(t.detach(), t._version()); }

void VersionCheck::check(const char* who) const {
  for (const auto& [tensor, version] : seen_) {
    TORCH_CHECK(static_cast<uint32_t>(tensor._version()) == version, "[", who,
                "] a tensor that the backward pass reads was changed in place: it is at version ",
                tensor._version(), ", expected ", version);
  }
}

}  // namespace compact
