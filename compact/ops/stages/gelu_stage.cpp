// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/ops/autograd/autograd.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

class GeluStage final : public Stage {
 public:
  explicit GeluStage(bool tanh) : form_(tanh ? "tanh" : "none") {}

  Needs needs() const override { return {.input = true}; }
  bool by_token() const override { return true; }

  at::Tensor forward(Forward& f) const override { return at::gelu(f.input, form_); }

  at::Tensor backward(Backward& b) const override {
    const at::Tensor x = std::move(b.input), gy = std::move(b.gy);
    if (!owned(gy)) return b.plus_residual(at::gelu_backward(gy, x, form_));
    at::Tensor gx = gy;
    at::gelu_backward_out(gx, gy, x, form_);
    return b.plus_residual(gx);
  }

 private:
  const char* form_;
};

}  // namespace

std::shared_ptr<const Stage> gelu_stage(bool tanh) { return std::make_shared<GeluStage>(tanh); }

}  // namespace compact
