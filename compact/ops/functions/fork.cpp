// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/fork.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "compact/ops/autograd/autograd.h"

namespace compact {
namespace {

using torch::autograd::variable_list;

// Keeps nothing, so that any number of backward passes may run through it.
struct ForkNode : torch::autograd::Node {
  std::string name() const override { return "CompActFork"; }
  variable_list apply(variable_list&& grads) override {
    TORCH_CHECK(!at::GradMode::is_enabled(), "[fork] gradients of gradients are not supported");
    at::Tensor a = std::move(grads[0]), b = std::move(grads[1]);
    if (!owned(a) && (owned(b) || !a.defined())) std::swap(a, b);
    if (!b.defined()) return {a};
    return {owned(a) ? a.add_(b) : a.add(b)};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> fork(const at::Tensor& t) {
  if (!at::GradMode::is_enabled() || !t.requires_grad()) return {t, t};
  check_plain("fork", t);
  const NodePtr node = make_node<ForkNode>();
  const at::Tensor inputs[] = {t};
  connect(node, inputs);
  at::Tensor first, second;
  {
    at::NoGradGuard no_grad;
    first = t.detach();
    second = t.detach();
  }
  torch::autograd::set_history(first, node);
  torch::autograd::set_history(second, node);
  return {first, second};
}

}  // namespace compact
