// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/optim/update.h"

namespace compact {

void sgd_step(ParameterState& s, const at::Tensor& grad, const StepContext& context) {
  const OptimizerOptions& o = context.options;
  const Parameter& p = *s.parameter;
  at::Tensor g = grad.to(at::kFloat).contiguous();
  if (context.grad_scale.defined()) g = g.mul(context.grad_scale);
  // A carrier is zero: what it stands for decays in the fold.
  const double decay = p.decay && !p.carrier ? o.weight_decay : 0;
  if (decay != 0) {
    g = g.add((s.master.defined() ? s.master : p.weight).detach().to(at::kFloat), decay);
  }
  if (s.m.defined()) {
    g = s.m.accumulate(0, g, o.sgd_momentum, 1, draws_key(s, context.step, Draws::kMomentum))
            .to(at::kFloat);
  }
  const uint64_t key = draws_key(s, context.step, Draws::kFold);
  if (p.carrier) {
    fold_rows(s, 0, g, decay_factor(s, context), -context.learning_rate * p.carrier->scale, key);
  } else {
    accumulate(p.weight, s.master, g, 1, -context.learning_rate, key, 0);
  }
}

}  // namespace compact
