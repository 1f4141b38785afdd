// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/ops/autograd.h"
#include "compact/ops/stages.h"

namespace compact {
namespace {

// In the activations' type or in f32.
void check_weight(const at::Tensor& x, const at::Tensor& weight) {
  check_like("rms norm", x, {{"weight", weight}},
             weight.scalar_type() == at::kFloat ? at::kFloat : x.scalar_type());
  COMPACT_CHECK(weight.is_contiguous() && weight.numel() == x.size(-1),
                "[rms norm] weight must be contiguous [", x.size(-1), "], is ", weight.sizes());
}

class RmsNormStage final : public Stage {
 public:
  explicit RmsNormStage(double eps) : eps_(eps) {}

  Needs needs() const override { return {.input = true}; }
  int parameters() const override { return 1; }

  at::Tensor forward(Forward& f) const override {
    const at::Tensor x = f.input.contiguous(), weight = f.weights[0].value;
    check_weight(x, weight);
    const int64_t n = x.size(-1), rows = n ? x.numel() / n : 0;
    at::Tensor y = at::empty_like(x), rstd = at::empty({rows}, x.options().dtype(at::kFloat));
    backend_of(x).rms_norm({.x = x.const_data_ptr(),
                            .weight = weight.const_data_ptr(),
                            .y = y.data_ptr(),
                            .rstd = static_cast<float*>(rstd.data_ptr()),
                            .rows = rows,
                            .n = n,
                            .eps = static_cast<float>(eps_),
                            .type = type_of(x),
                            .weight_type = type_of(weight)},
                           launch_for(x));
    if (f.want_extras) f.extras = {rstd};
    return y;
  }

  at::Tensor backward(Backward& b) const override {
    const at::Tensor x = b.input.contiguous(), gy = b.gy.contiguous(), weight = b.weights[0].value;
    check_weight(x, weight);
    check_like("rms norm", x, {{"gradient", gy}, {"residual", b.residual}});
    b.gy = at::Tensor();
    const int64_t n = x.size(-1), rows = n ? x.numel() / n : 0;
    const bool want_weight = b.want_parameters[0];
    at::Tensor residual = b.residual.defined() ? b.residual.contiguous() : at::Tensor();
    b.residual = at::Tensor();
    const at::Tensor gx = owned(residual) ? residual : owned(gy) ? gy : at::empty_like(x);
    at::Tensor parts;
    if (want_weight) {
      b.gparameters[0] = at::empty_like(weight);
      parts = at::empty({kernels::kRmsNormParts, n}, x.options().dtype(at::kFloat));
    }
    backend_of(x).rms_norm_backward(
        {.gy = gy.const_data_ptr(),
         .x = x.const_data_ptr(),
         .weight = weight.const_data_ptr(),
         .rstd = static_cast<const float*>((*b.extras)[0].const_data_ptr()),
         .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
         .gx = gx.data_ptr(),
         .gweight = want_weight ? b.gparameters[0].data_ptr() : nullptr,
         .parts = want_weight ? static_cast<float*>(parts.data_ptr()) : nullptr,
         .rows = rows,
         .n = n,
         .type = type_of(x),
         .weight_type = type_of(weight)},
        launch_for(x));
    return b.want_input ? gx : at::Tensor();
  }

 private:
  double eps_;
};

}  // namespace

std::shared_ptr<const Stage> rms_norm_stage(double eps) {
  return std::make_shared<RmsNormStage>(eps);
}

}  // namespace compact
