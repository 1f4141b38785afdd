// SPDX-License-Identifier: Apache-2.0
// A request for a plan: a model, how it is trained, and on what.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "compact/networks/network.h"
#include "compact/ops/policy/policy.h"
#include "compact/optim/options.h"
#include "compact/plan/operations.h"
#include "compact/plan/step_memory.h"

namespace compact {

struct StepRequest {
  std::function<std::unique_ptr<Network>(at::Device)> network;
  std::function<StepInputs(at::Device, int64_t micro)> micro_batch;  // its values mean nothing
  bool resident = false;  // micro-batches are the data set itself, which no step takes memory for
  OptimizerOptions optimizer;
  StepShape step;
  c10::DeviceType device = c10::kCPU;  // what the plan is for
};

struct StepPlan {
  StepMemory memory;
  int64_t reserved = 0;  // CUDA: what the caching allocator holds at the peak; CPU: the peak
  int64_t rank = 0;      // whose step it is
  int64_t parameters = 0;
  int64_t whole = 0;           // bytes before a step with all weights present (zero 3); else 0
  int64_t sent = 0;            // bytes that ranks give to sums and copies in a step
  std::vector<int64_t> dealt;  // bytes of optimizer state that only one rank has, by rank
};

// Makes the meta device count memory as this device does, and run operations that it lacks. Plans
// call it.
void prepare_meta(c10::DeviceType device);

// A training step on the meta device: no tensor of the model is allocated. Throws InputError if
// its policy cannot be applied to the model or step. `operations`, where given, becomes what runs
// in the step, from the batches to the weights' update.
StepPlan plan_step(const StepRequest& request, std::vector<Operation>* operations = nullptr);

}  // namespace compact
