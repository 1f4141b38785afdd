// SPDX-License-Identifier: Apache-2.0
// SGD with momentum, as torch.optim.SGD.
#include <ATen/ATen.h>

#include "compact/optim/update.h"

namespace compact {
namespace {

void sgd_step(ParameterState& s, const at::Tensor& grad, const StepContext& context) {
  const Parameter& p = *s.parameter;
  at::Tensor g = grad.to(at::kFloat).contiguous();
  if (context.grad_scale.defined()) g = g.mul(context.grad_scale);
  if (s.m.defined()) {
    const double momentum = context.options.sgd_momentum;
    g = s.m.accumulate(0, g, momentum, 1, draws_key(s, context.step, Draws::kMomentum),
                       context.guard)
            .to(at::kFloat);
  }
  const uint64_t key = draws_key(s, context.step, Draws::kFold);
  if (p.carrier) {
    fold_rows(s, 0, g, context.decay_factor(), -context.learning_rate * p.carrier->scale, key,
              context.guard);
  } else {
    accumulate(p.weight, s.master, g, 1, -context.learning_rate, key, 0, context.guard);
  }
}

}  // namespace

extern const OptimizerInfo sgd_optimizer = {
    .name = "sgd",
    .summary = "stochastic gradient descent with momentum, weight decay in the gradient",
    .step = sgd_step,
    .state =
        [](const OptimizerOptions& o) { return OptimizerInfo::State{.m = o.sgd_momentum > 0}; },
    .decoupled_decay = false,
};

}  // namespace compact
