// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/dropout.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/ops/autograd/autograd.h"

namespace compact {

namespace {

struct DropoutNode final : torch::autograd::Node {
  double p = 0;
  uint64_t key = 0;
  std::string name() const override { return "CompActDropout"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    TORCH_CHECK(!at::GradMode::is_enabled(), "[dropout] gradients of gradients are not supported");
    if (!grads[0].defined()) return {at::Tensor()};
    return {dropped(std::move(grads[0]), p, key)};
  }
};

}  // namespace

void drop_into(const at::Tensor& y, const at::Tensor& x, double p, uint64_t key) {
  check_like("dropout", x, {{"result", y}});
  COMPACT_CHECK(x.is_contiguous() && y.is_contiguous() && x.numel() == y.numel(),
                "[dropout] needs two contiguous tensors of one size, not ", x.sizes(), " and ",
                y.sizes());
  backend_of(x).dropout(
      {.x = x.const_data_ptr(),
       .y = y.data_ptr(),
       .count = x.numel(),
       .key = key,
       .dropped = static_cast<uint32_t>(std::min<int64_t>(std::llround(p * 65536), 65535)),
       .type = type_of(x)},
      launch_for(x));
}

at::Tensor dropped(at::Tensor x, double p, uint64_t key) {
  const at::Tensor y = owned(x) ? x : at::empty_like(x, at::MemoryFormat::Contiguous);
  drop_into(y, x.contiguous(), p, key);
  return y;
}

at::Tensor autograd_dropout(const at::Tensor& x, double p, uint64_t key) {
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = at::empty_like(x, at::MemoryFormat::Contiguous);
    drop_into(y, x.contiguous(), p, key);
  }
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return y;
  NodePtr node = make_node<DropoutNode>();
  auto& n = static_cast<DropoutNode&>(*node);
  n.p = p;
  n.key = key;
  connect(node, std::array{x});
  torch::autograd::set_history(y, node);
  return y;
}

}  // namespace compact
