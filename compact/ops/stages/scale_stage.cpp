// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/ops/autograd/autograd.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

class ScaleStage final : public Stage {
 public:
  explicit ScaleStage(double factor) : factor_(factor) {}

  Needs needs() const override { return {}; }
  bool by_token() const override { return true; }

  at::Tensor forward(Forward& f) const override {
    return f.overwrite ? f.input.mul_(factor_) : f.input * factor_;
  }

  at::Tensor backward(Backward& b) const override {
    at::Tensor gx = owned(b.gy) ? b.gy.mul_(factor_) : b.gy * factor_;
    b.gy = at::Tensor();
    return b.plus_residual(std::move(gx));
  }

 private:
  double factor_;
};

}  // namespace

std::shared_ptr<const Stage> scale_stage(double factor) {
  return std::make_shared<ScaleStage>(factor);
}

}  // namespace compact
