// SPDX-License-Identifier: Apache-2.0
// One step of training: what runs take and what plans count.
#pragma once

#include <cstdint>
#include <functional>

#include "compact/networks/network.h"
#include "compact/optim/optimizer.h"

namespace compact {

// A micro-batch, as a network reads it, and what the random bits of its pass come from.
struct StepInputs {
  Tensors inputs;
  at::Tensor target;
  uint64_t noise = 0;
  at::Tensor ranges = {};  // of sequences in rows (Pass::ranges), on the CPU
};

struct StepSettings {
  int64_t accumulation = 1;  // micro-batches in a step
  int64_t first = 0;         // number of the first; the gradients of those before it are there
  double loss_scale = 1;     // what the sum of a micro-batch's losses is multiplied by
  double learning_rate = 0;
  double max_grad_norm = 0;      // what the norm of all gradients is clipped to; 0: it is not
  PassReport* report = nullptr;  // where given, of the latest micro-batch
  // f32 [] on the network's device, which becomes NaN with a loss or norm that is not finite; where
  // it is not 0 updates change nothing. Undefined: updates are always made.
  at::Tensor guard = {};
};

// Called between the parts of a step; any may be missing. An exception ends the step.
struct StepHooks {
  std::function<void(int64_t micro)> before_forward;
  std::function<void(const at::Tensor& loss)> before_backward;
  // False ends the step after this micro-batch, with the gradients so far where they are.
  std::function<bool(int64_t micro, const at::Tensor& loss)> after_backward;
  std::function<void(const at::Tensor& norm)> before_update;  // norm: f32 [], before it is clipped
};

// Under ZeRO's stage 3 (Optimizer::shard_weights()): what each segment of the network reads.
void shard_weights(const Network& network, Optimizer& optimizer);

// Forward and backward passes of micro_batch(first), ..., micro_batch(accumulation - 1), then the
// optimizer's step. Returns whether it came to that. Moments and marks of the step go to the
// memory trace that is recorded (memory_trace.h).
bool train_step(const Network& network, Optimizer& optimizer, const StepSettings& settings,
                const std::function<StepInputs(int64_t micro)>& micro_batch,
                const StepHooks& hooks);

}  // namespace compact
