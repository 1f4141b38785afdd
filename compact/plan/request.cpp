// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/request.h"

#include "compact/base/check.h"
#include "compact/ops/attention.h"
#include "compact/ops/memory.h"
#include "compact/plan/caching_allocator.h"
#include "compact/plan/meta_ops.h"

namespace compact {

StepPlan plan_step(const PlanRequest& request) {
  install_counting_allocator();
  register_meta_ops();
  set_meta_device(request.device);
  const bool cuda = request.device == c10::kCUDA;
  if (cuda) start_trace(c10::kMeta);
  const Llama model(
      request.shape, request.policy,
      {.device = at::kMeta, .dtype = request.dtype, .max_length = request.step.length});
  for (const Parameter* p : model.parameters()) {
    COMPACT_CHECK(!p->release || (request.step.accumulation == 1 && !request.step.clip), "grad `",
                  p->name,
                  "`: release=true updates it before all gradients are known: it needs "
                  "--gradient_accumulation_steps 1 and --max_grad_norm 0");
  }
  Optimizer optimizer(model.parameters(), request.optimizer(request.policy));
  MemoryTrace built;
  if (cuda) built = stop_trace();
  StepRecorder recorder(model, optimizer, request.step);
  StepPlan plan{.memory = run_step(model, optimizer, request.step, recorder),
                .parameters = model.parameter_count()};
  plan.reserved = plan.memory.peak;
  if (cuda) {
    CachingAllocatorModel allocator;
    plan.workspace = kCublasWorkspaceBytes;
    allocator.allocate(0, plan.workspace);
    allocator.replay(built);
    allocator.replay(recorder.trace());
    plan.reserved = allocator.most_reserved();
  }
  return plan;
}

}  // namespace compact
