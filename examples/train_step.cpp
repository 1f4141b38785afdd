// SPDX-License-Identifier: Apache-2.0
// Training steps in a program of one's own: what a step will take, then twenty of them.
#include <cstdio>

#include <ATen/ATen.h>

#include "compact/base/text.h"
#include "compact/models/models.h"
#include "compact/ops/memory.h"
#include "compact/plan/request.h"

int main() {
  using namespace compact;
  install_counting_allocator();  // before the first tensor: bytes are counted from here on
  LlamaConfig shape = model_named("llama-tiny").config;
  shape.vocab_size = 257;
  const Policy policy = Policy::preset("compact");  // or Policy::parse("slot ... = recompute", "")

  const StepPlan plan = plan_step({.shape = shape,
                                   .policy = policy,
                                   .optimizer = [](const Policy&) { return OptimizerOptions(); },
                                   .step = {.batch = 8, .length = 64}});
  std::printf("planned peak %s, in %s\n", format_bytes(plan.memory.peak).c_str(),
              plan.memory.at_peak.moment.c_str());

  const Llama model(shape, policy, {.max_length = 64, .seed = 1});
  Optimizer optimizer(model.parameters(), OptimizerOptions());
  const at::Tensor ids = at::arange(8 * 64, at::kLong).remainder(97).view({8, 64});
  const at::Tensor targets = (ids + 1).remainder(97);
  double loss = 0;
  for (int step = 0; step < 20; ++step) {
    reset_peak(at::kCPU);
    at::Tensor mean =
        model.loss({ids}, targets, {.scale = 1.0 / static_cast<double>(targets.numel())});
    mean.backward();
    optimizer.step(1e-2, Optimizer::clip_factor(optimizer.gradient_norm(), 1.0));
    loss = mean.item<double>();
    if (step % 5 == 0) std::printf("step %d  loss %.3f\n", step, loss);
  }
  std::printf("measured peak %s, loss %.3f\n", format_bytes(peak_bytes(at::kCPU)).c_str(), loss);
  return loss < 3 ? 0 : 1;
}
