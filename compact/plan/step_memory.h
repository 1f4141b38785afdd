// SPDX-License-Identifier: Apache-2.0
// The memory of a training step by what it is for: predicted on the meta device, or measured while
// a real step runs. Both come from the same record of allocations.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compact/ops/memory/memory.h"
#include "compact/ops/memory/memory_trace.h"
#include "compact/plan/train_step.h"

namespace compact {

struct StepShape {
  int64_t accumulation = 1;  // micro-batches in a step
  bool clip = true;          // by the norm of all gradients
  // Whether weights may be updated inside the backward pass.
  bool may_release() const { return !clip && accumulation == 1; }
};

// Bytes. weights + optimizer + projections + other + matrix_library live before a step; at the peak
// gradients, saved tensors and workspace are on top of them.
struct StepMemory {
  int64_t weights = 0;
  int64_t optimizer = 0;  // moments and master weights
  int64_t outside = 0;    // of these on a GPU's host or on a disk, in no other figure but host
  int64_t weights_outside = 0;  // the same of weights
  int64_t projections = 0;      // carriers, signs and indices
  int64_t other = 0;            // what else lives, as rotary tables
  int64_t matrix_library = 0;   // CUDA: workspaces of cuBLAS, which every thread has its own of
  int64_t gradients = 0;        // of all parameters, as they are summed
  std::vector<SlotBytes> slots;
  int64_t saved = 0;  // sum of the slots as stored
  HostBytes host;     // offloaded from a GPU at the most: of `saved`, and `outside`
  int64_t held = 0;   // from the last forward pass to its backward pass
  int64_t peak = 0;
  MemoryPeak at_peak;                                   // above what lives before a step
  std::vector<std::pair<StepMoment, int64_t>> moments;  // the most at each, all included
  int64_t fixed() const { return weights + optimizer + projections + other + matrix_library; }
  // Counts `bytes` of workspaces, which live all the time.
  void add_matrix_library(int64_t bytes);
  bool has(const StepMoment& moment) const;
  // The most at a moment, which must be one of the step's.
  int64_t at(const StepMoment& moment) const;
};

// Records one step of a model. The device is the model's: CPU or meta.
class StepRecorder {
 public:
  StepRecorder(const Network& model, const Optimizer& optimizer);
  // Before the step allocates anything. `outside`: bytes of data sets that live on the device.
  void begin(int64_t outside = 0);
  void mark_gradients();  // after every backward pass
  // After the optimizer's step, whose passes left `report`.
  StepMemory finish(const PassReport& report);
  const MemoryTrace& trace() const { return trace_; }

 private:
  const Network& model_;
  const Optimizer& optimizer_;
  int64_t before_ = 0, gradients_ = 0;
  MemoryTrace trace_;
};

// A train_step() on `micro_batch(i)`, recorded: planned where the model is on the meta device, real
// where it is on the CPU.
StepMemory run_step(const Network& model, Optimizer& optimizer, const StepShape& shape,
                    const std::function<StepInputs(int64_t)>& micro_batch, StepRecorder& recorder,
                    int64_t outside = 0);

}  // namespace compact
