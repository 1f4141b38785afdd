// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/request.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/kernels/gpu.h"
#include "compact/ops/memory/memory.h"
#include "compact/plan/caching_allocator.h"
#include "compact/plan/meta/meta_ops.h"
#include "compact/plan/meta/sums.h"

namespace compact {

void prepare_meta(c10::DeviceType device) {
  install_counting_allocator();
  register_meta_ops();
  set_meta_device(device);
}

StepPlan plan_step(const StepRequest& request, std::vector<Operation>* operations) {
  prepare_meta(request.device);
  const bool cuda = request.device == c10::kCUDA;
  StepInputs resident;
  if (request.resident) resident = request.micro_batch(at::kMeta, 0);
  const int64_t outside = live_bytes(at::kMeta);  // the caller's, too
  if (cuda) start_trace(c10::kMeta);
  const std::unique_ptr<Network> model = request.network(at::kMeta);
  for (const Parameter* p : model->trained()) {
    COMPACT_CHECK(!p->release || (request.step.accumulation == 1 && !request.step.clip), "grad `",
                  p->name,
                  "`: release=true updates it before all gradients are known: it needs "
                  "--gradient_accumulation_steps 1 and --max_grad_norm 0");
  }
  Optimizer optimizer(model->trained(), request.optimizer);
  const int64_t whole = live_bytes(at::kMeta) - outside;
  shard_weights(*model, optimizer);
  MemoryTrace built;
  if (cuda) built = stop_trace();
  const int64_t sent = request.optimizer.group ? request.optimizer.group->traffic().bytes : 0;
  StepRecorder recorder(*model, optimizer);
  std::optional<OperationRecorder> recorded;
  if (operations) recorded.emplace();
  const InPlaceSums sums;
  StepPlan plan{.memory = run_step(
                    *model, optimizer, request.step,
                    [&](int64_t i) {
                      return request.resident ? resident : request.micro_batch(at::kMeta, i);
                    },
                    recorder, outside),
                .parameters = model->parameter_count()};
  if (const auto& group = request.optimizer.group) {
    plan.rank = group->rank();
    plan.sent = group->traffic().bytes - sent;
  }
  plan.dealt = optimizer.dealt_bytes();
  if (operations) {
    *operations = recorded->take();
    // Weights' copies for passes are among the operations.
    int64_t updated = plan.memory.outside;
    for (const Parameter* p : model->trained()) {
      if (p->place != MemoryPlace::kDevice) updated += p->weight_bytes();
    }
    if (cuda && updated > 0) {
      operations->push_back({.name = "state on the host, read and written",
                             .moment = {Phase::kOptimizer},
                             .bytes = 2.0 * static_cast<double>(updated),
                             .host = true,
                             .launches = 0});
    }
  }
  recorded.reset();
  const bool dealt = live_bytes(at::kMeta) - outside < whole;
  if (dealt) plan.whole = whole;
  plan.reserved = std::max(plan.memory.peak, plan.whole);
  if (cuda) {
    CachingAllocatorModel allocator;
    plan.memory.add_matrix_library(
        allocator.allocate_workspaces(kernels::planned_gpu().capability, /*late=*/false));
    allocator.replay(built);
    if (dealt) plan.whole = allocator.most_reserved();
    allocator.replay_steps(recorder.trace());
    plan.reserved = allocator.most_reserved();
  }
  return plan;
}

}  // namespace compact
