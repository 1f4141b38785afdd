// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/codecs/meta_device.h"
#include "compact/ops/autograd/autograd.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

class LayerNormStage final : public Stage {
 public:
  LayerNormStage(double eps, bool for_products) : eps_(eps), for_products_(for_products) {}

  Needs needs() const override { return {.input = true}; }
  bool by_token() const override { return true; }
  bool leaves_extras() const override { return true; }
  int64_t reads_rows(int64_t width) const override { return width; }
  int parameters() const override { return 2; }

  at::Tensor forward(Forward& f) const override {
    const at::Tensor weight = as_read(f.weights[0].value, f.input),
                     bias = as_read(f.weights[1].value, f.input);
    auto [y, mean, rstd] = at::native_layer_norm(f.input, weight.sizes(), weight, bias, eps_);
    if (f.want_extras) f.extras = {mean, rstd};
    return for_products_ && f.pass.products ? y.to(*f.pass.products) : y;
  }

  at::Tensor backward(Backward& b) const override {
    const at::Tensor weight = as_read(b.weights[0].value, b.input),
                     bias = as_read(b.weights[1].value, b.input);
    auto [gx, gweight, gbias] = at::native_layer_norm_backward(
        b.pass.as(b.gy, b.input.scalar_type()), b.input, weight.sizes(), (*b.extras)[0],
        (*b.extras)[1], weight, bias, {b.want_input, b.want_parameters[0], b.want_parameters[1]});
    b.gy = b.input = at::Tensor();
    b.gparameters = {as_held(gweight, b.weights[0].value), as_held(gbias, b.weights[1].value)};
    if (!b.want_input) return {};
    return b.plus_residual(gx);
  }

 private:
  // The CPU's operation takes weights of another type than the input's, a GPU's does not.
  static at::Tensor as_read(const at::Tensor& weight, const at::Tensor& input) {
    return device_type_of(input) == at::kCPU ? weight : weight.to(input.scalar_type());
  }
  static at::Tensor as_held(const at::Tensor& gradient, const at::Tensor& weight) {
    return gradient.defined() ? gradient.to(weight.scalar_type()) : gradient;
  }

  double eps_;
  bool for_products_;
};

}  // namespace

std::shared_ptr<const Stage> layer_norm_stage(double eps, bool for_products) {
  return std::make_shared<LayerNormStage>(eps, for_products);
}

}  // namespace compact
