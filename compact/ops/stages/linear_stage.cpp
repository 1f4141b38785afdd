// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/codecs/launch.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

class LinearStage final : public Stage {
 public:
  explicit LinearStage(const LinearOptions& options) : options_(options) {}

  Needs needs() const override { return {.input = true}; }
  int parameters() const override { return options_.bias ? 2 : 1; }
  Work work(const at::Tensor& input, const at::Tensor& output, Weights weights) const override {
    const at::Tensor& weight = weights[0].value;
    return {.products = 2.0 * static_cast<double>(output.numel() * weight.size(1)),
            .bytes = static_cast<double>(input.nbytes() + output.nbytes() + weight.nbytes())};
  }
  bool reads_input_for_weight() const override { return true; }
  bool may_project() const override { return true; }
  int64_t sketch_width() const override { return options_.sketch_width; }

  at::Tensor forward(Forward& f) const override {
    const Weight& weight = f.weights[0];
    check_like("linear", f.input, {{"weight", weight.value}});
    if (f.sketch) f.extras = weight.carrier->project(f.input);
    at::Tensor y = at::linear(f.input, weight.value);
    if (!options_.bias) return y;
    check_like("linear", f.input, {{"bias", f.weights[1].value}});
    return y.add_(f.weights[1].value);
  }

  at::Tensor backward(Backward& b) const override {
    const Weight& weight = b.weights[0];
    if (b.want_parameters[0]) {
      const at::Tensor gy = rows_of(b.gy);
      if (!weight.carrier) {
        const at::Tensor gw = b.gparameters[0] = gy.t().mm(rows_of(b.input));
        if (options_.zeros > 0) gw.narrow(1, gw.size(1) - options_.zeros, options_.zeros).zero_();
      } else {
        const Tensors z = b.sketch ? *b.extras : weight.carrier->project(b.input);
        b.input = at::Tensor();
        b.gparameters[0] = weight.carrier->gradient(gy, z);
      }
    }
    b.input = at::Tensor();
    if (options_.bias && b.want_parameters[1]) b.gparameters[1] = rows_of(b.gy).sum(0);
    if (!b.want_input) return {};
    at::Tensor gx = at::matmul(b.gy, weight.value);
    b.gy = at::Tensor();
    return b.plus_residual(gx);
  }

 private:
  LinearOptions options_;
};

}  // namespace

std::shared_ptr<const Stage> linear_stage(const LinearOptions& options) {
  return std::make_shared<LinearStage>(options);
}

}  // namespace compact
