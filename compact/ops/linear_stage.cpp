// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/codecs/launch.h"
#include "compact/ops/stages.h"

namespace compact {
namespace {

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

class LinearStage final : public Stage {
 public:
  LinearStage(const Parameter* weight, const Parameter* bias) : weight_(weight), bias_(bias) {}

  Needs needs() const override { return {.input = true}; }
  std::vector<const Parameter*> parameters() const override {
    if (!bias_) return {weight_};
    return {weight_, bias_};
  }
  Work work(int64_t tokens, int64_t, int64_t element_size) const override {
    const auto out = static_cast<double>(weight_->weight.size(0)),
               in = static_cast<double>(weight_->weight.size(1)), t = static_cast<double>(tokens);
    return {.products = 2 * t * out * in,
            .bytes = (t * (in + out) + in * out) * static_cast<double>(element_size)};
  }
  bool reads_input_for_weight() const override { return true; }
  int64_t sketch_width() const override {
    const Carrier* c = weight_->carrier.get();
    return c ? c->rank * static_cast<int64_t>(c->projections.size()) : 0;
  }

  at::Tensor forward(Forward& f) const override {
    const Weight& weight = f.weights[0];
    check_like("linear", f.input, {{"weight", weight.value}});
    if (f.sketch) f.extras = weight.carrier->project(f.input);
    at::Tensor y = at::linear(f.input, weight.value);
    if (!bias_) return y;
    check_like("linear", f.input, {{"bias", f.weights[1].value}});
    return y.add_(f.weights[1].value);
  }

  at::Tensor backward(Backward& b) const override {
    const Weight& weight = b.weights[0];
    if (b.want_parameters[0]) {
      const at::Tensor gy = rows_of(b.gy);
      if (!weight.carrier) {
        b.gparameters[0] = gy.t().mm(rows_of(b.input));
      } else {
        const Tensors z = b.sketch ? *b.extras : weight.carrier->project(b.input);
        b.input = at::Tensor();
        b.gparameters[0] = weight.carrier->gradient(gy, z);
      }
    }
    b.input = at::Tensor();
    if (bias_ && b.want_parameters[1]) b.gparameters[1] = rows_of(b.gy).sum(0);
    if (!b.want_input) return {};
    at::Tensor gx = at::matmul(b.gy, weight.value);
    b.gy = at::Tensor();
    return b.plus_residual(gx);
  }

 private:
  const Parameter *weight_, *bias_;
};

}  // namespace

std::shared_ptr<const Stage> linear_stage(const Parameter* weight, const Parameter* bias) {
  return std::make_shared<LinearStage>(weight, bias);
}

}  // namespace compact
