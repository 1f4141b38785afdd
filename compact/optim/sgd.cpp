// SPDX-License-Identifier: Apache-2.0
// SGD with momentum, as torch.optim.SGD.
#include <ATen/ATen.h>

#include "compact/optim/update.h"

namespace compact {
namespace {

std::vector<FoldPart> sgd_folds(const ParameterState& s, const StepContext& context) {
  return {{0, s.leaf.size(0), -context.learning_rate * s.parameter->carrier->scale, at::kFloat}};
}

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
  if (p.carrier) return fold(s, sgd_folds(s, context)[0], g, context);
  accumulate(p.weight, s.master, g, 1, -context.learning_rate,
             draws_key(s, context.step, Draws::kFold), 0, context.guard);
}

}  // namespace

extern const OptimizerInfo sgd_optimizer = {
    .name = "sgd",
    .summary = "stochastic gradient descent with momentum, weight decay in the gradient",
    .step = sgd_step,
    .state =
        [](const OptimizerOptions& o) { return OptimizerInfo::State{.m = o.sgd_momentum > 0}; },
    .folds = sgd_folds,
    .decoupled_decay = false,
};

}  // namespace compact
