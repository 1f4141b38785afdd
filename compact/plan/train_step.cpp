// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/train_step.h"

#include <torch/csrc/autograd/autograd.h>

#include "compact/ops/memory/memory_trace.h"

namespace compact {

void shard_weights(const Network& network, Optimizer& optimizer) {
  std::vector<std::vector<Parameter*>> all;
  for (const Segment* segment : network.segments()) all.push_back(network.parameters_of(*segment));
  optimizer.shard_weights(all);
}

bool train_step(const Network& network, Optimizer& optimizer, const StepSettings& settings,
                const std::function<StepInputs(int64_t micro)>& micro_batch,
                const StepHooks& hooks) {
  for (int64_t i = settings.first; i < settings.accumulation; ++i) {
    const StepInputs batch = micro_batch(i);
    if (settings.report) settings.report->clear();
    trace_mark(MemoryEventKind::kForwardBegin);
    if (hooks.before_forward) hooks.before_forward(i);
    const at::Tensor loss =
        network.loss(batch.inputs, batch.target,
                     {.scale = settings.loss_scale, .noise = batch.noise, .ranges = batch.ranges},
                     settings.report);
    trace_mark(MemoryEventKind::kForwardEnd);
    if (hooks.before_backward) hooks.before_backward(loss);
    if (settings.guard.defined()) settings.guard.add_(loss.detach(), 0);
    optimizer.begin_backward(settings.learning_rate, settings.guard,
                             /*last=*/i + 1 == settings.accumulation);
    torch::autograd::backward({loss}, {});
    optimizer.end_backward();
    if (hooks.after_backward && !hooks.after_backward(i, loss)) return false;
  }
  optimizer.sum_over_ranks();
  trace_moment(Phase::kGradientNorm);
  const at::Tensor norm = optimizer.gradient_norm();
  if (settings.guard.defined()) settings.guard.add_(norm, 0);
  if (hooks.before_update) hooks.before_update(norm);
  trace_moment(Phase::kOptimizer);
  optimizer.step(settings.learning_rate,
                 settings.max_grad_norm > 0 ? Optimizer::clip_factor(norm, settings.max_grad_norm)
                                            : at::Tensor(),
                 settings.guard);
  return true;
}

}  // namespace compact
