// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/ops/autograd.h"
#include "compact/ops/dropout.h"
#include "compact/ops/stages.h"

namespace compact {
namespace {

class DropoutStage final : public Stage {
 public:
  DropoutStage(double p, int64_t width) : p_(p), width_(width) {}

  Needs needs() const override { return {}; }
  Work work(int64_t tokens, int64_t, int64_t element_size) const override {
    return {.bytes = 2.0 * static_cast<double>(tokens * width_ * element_size)};
  }

  at::Tensor forward(Forward& f) const override {
    if (!f.pass.training) return f.overwrite ? f.input : f.input.clone();
    if (!f.overwrite) {
      const at::Tensor x = f.input.contiguous(), y = at::empty_like(x);
      drop_into(y, x, p_, f.pass.key);
      return y;
    }
    return dropped(std::move(f.input), p_, f.pass.key);
  }

  at::Tensor backward(Backward& b) const override {
    at::Tensor gx = std::move(b.gy);
    if (b.pass.training) gx = dropped(std::move(gx), p_, b.pass.key);
    return b.residual.defined() ? gx + b.residual : gx;
  }

 private:
  double p_;
  int64_t width_;
};

}  // namespace

std::shared_ptr<const Stage> dropout_stage(double p, int64_t width) {
  return std::make_shared<DropoutStage>(p, width);
}

}  // namespace compact
