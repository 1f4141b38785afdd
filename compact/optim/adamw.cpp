// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>

#include "compact/codecs/launch.h"
#include "compact/optim/update.h"

namespace compact {

void adamw_step(ParameterState& s, const at::Tensor& grad, const StepContext& context) {
  const OptimizerOptions& o = context.options;
  const Carrier* carrier = s.parameter->carrier.get();
  // A carrier's step starts from zero and goes into the weight at once.
  const at::Tensor target =
      carrier ? at::zeros(grad.sizes(), s.parameter->weight.options()) : s.parameter->weight;
  const at::Tensor dense = grad.contiguous();
  const auto step = static_cast<double>(context.step);
  // Decay inside the step would do nothing to a carrier, which is zero: there it is in the fold.
  const double decay = carrier || !s.parameter->decay ? 0 : o.weight_decay;
  backend_of(target).adamw({.param = target.data_ptr(),
                            .master = carrier ? nullptr : floats_of(s.master),
                            .grad = dense.data_ptr(),
                            .grad_scale = floats_of(context.grad_scale),
                            .m = s.m.data_ptr(),
                            .v = s.v.data_ptr(),
                            .count = target.numel(),
                            .lr = static_cast<float>(context.learning_rate),
                            .beta1 = static_cast<float>(o.beta1),
                            .beta2 = static_cast<float>(o.beta2),
                            .eps = static_cast<float>(o.eps),
                            .weight_decay = static_cast<float>(decay),
                            .bias1 = static_cast<float>(1 - std::pow(o.beta1, step)),
                            .bias2 = static_cast<float>(1 - std::pow(o.beta2, step)),
                            .key = draws_key(s, context.step, Draws::kAdamW),
                            .type = type_of(target),
                            .grad_type = type_of(dense),
                            .state_type = type_of(s.m)},
                           launch_for(target));
  if (!carrier) return target.unsafeGetTensorImpl()->bump_version();
  fold_rows(s, 0, target, decay_factor(s, context), carrier->scale,
            draws_key(s, context.step, Draws::kFold));
}

}  // namespace compact
