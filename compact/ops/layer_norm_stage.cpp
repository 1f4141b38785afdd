// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/ops/autograd.h"
#include "compact/ops/stages.h"

namespace compact {
namespace {

class LayerNormStage final : public Stage {
 public:
  LayerNormStage(const Parameter* weight, const Parameter* bias, double eps)
      : weight_(weight), bias_(bias), eps_(eps) {}

  Needs needs() const override { return {.input = true}; }
  std::vector<const Parameter*> parameters() const override { return {weight_, bias_}; }
  int64_t extra_floats() const override { return 2; }
  Work work(int64_t tokens, int64_t, int64_t element_size) const override {
    return {.bytes = 2.0 * static_cast<double>(tokens * weight_->weight.size(0) * element_size)};
  }

  at::Tensor forward(Forward& f) const override {
    auto [y, mean, rstd] = at::native_layer_norm(f.input, weight_->weight.sizes(), weight_->weight,
                                                 bias_->weight, eps_);
    if (f.want_extras) f.extras = {mean, rstd};
    return y;
  }

  at::Tensor backward(Backward& b) const override {
    auto [gx, gweight, gbias] = at::native_layer_norm_backward(
        b.gy, b.input, weight_->weight.sizes(), (*b.extras)[0], (*b.extras)[1], weight_->weight,
        bias_->weight, {b.want_input, b.want_parameters[0], b.want_parameters[1]});
    b.gy = b.input = at::Tensor();
    b.gparameters = {gweight, gbias};
    if (!b.want_input) return {};
    return b.plus_residual(gx);
  }

 private:
  const Parameter *weight_, *bias_;
  double eps_;
};

}  // namespace

std::shared_ptr<const Stage> layer_norm_stage(const Parameter* weight, const Parameter* bias,
                                              double eps) {
  return std::make_shared<LayerNormStage>(weight, bias, eps);
}

}  // namespace compact
