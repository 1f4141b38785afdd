// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/ops/autograd/autograd.h"
#include "compact/ops/functions/dropout.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

class DropoutStage final : public Stage {
 public:
  explicit DropoutStage(double p) : p_(p) {}

  Needs needs() const override { return {}; }

  at::Tensor forward(Forward& f) const override {
    if (!f.pass.training) return f.overwrite ? f.input : f.input.clone();
    if (!f.overwrite) {
      const at::Tensor x = f.input.contiguous(), y = at::empty_like(x);
      drop_into(y, x, p_, f.pass.noise);
      return y;
    }
    return dropped(std::move(f.input), p_, f.pass.noise);
  }

  at::Tensor backward(Backward& b) const override {
    at::Tensor gx = std::move(b.gy);
    if (b.pass.training) gx = dropped(std::move(gx), p_, b.pass.noise);
    return b.residual.defined() ? gx + b.residual : gx;
  }

 private:
  double p_;
};

}  // namespace

std::shared_ptr<const Stage> dropout_stage(double p) { return std::make_shared<DropoutStage>(p); }

}  // namespace compact
