// SPDX-License-Identifier: Apache-2.0
// The allocations and frees of a training step, in order, and the composition of its peak.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compact/ops/memory/step_moment.h"

namespace compact {

enum class MemoryEventKind : uint8_t {
  kAllocate,      // `bytes` at `address`
  kFree,          // of `bytes` at `address`
  kMoment,        // from here on it is moment number `bytes`
  kGradient,      // what lives at `address` is a gradient
  kProduct,       // on the meta device: a matrix product has its result
  kForwardBegin,  // of a micro-batch
  kForwardEnd,    // what was allocated since kForwardBegin and lives is held for backward
};

struct MemoryEvent {
  MemoryEventKind kind;
  uintptr_t address = 0;
  int64_t bytes = 0;
};

struct MemoryTrace {
  std::vector<MemoryEvent> events;
  std::vector<StepMoment> moments;  // in the order first seen
};

// Records what happens on one type of device (CPU or meta, with the counting allocator) until
// stop_trace. One trace at a time.
void start_trace(c10::DeviceType type);
MemoryTrace stop_trace();

// Called at the moments of a step. Costs next to nothing while no trace is recorded.
void trace_moment(Phase phase, const std::string& part = {});
StepMoment traced_moment();  // the latest of the trace that is recorded
void trace_mark(MemoryEventKind kind);
void trace_gradient(const at::Tensor& gradient);

// Called by the counting allocators.
void trace_allocate(c10::DeviceType type, const void* address, int64_t bytes);
void trace_free(c10::DeviceType type, const void* address, int64_t bytes);

// Bytes at a moment, above what lived when the trace began.
struct MemoryPeak {
  int64_t total = 0;
  int64_t gradients = 0, saved = 0;  // of it; the rest is workspace
  int64_t workspace() const { return total - gradients - saved; }
  StepMoment moment;
};
struct MemoryTimeline {
  MemoryPeak peak;
  std::vector<std::pair<StepMoment, int64_t>> moments;  // the most of each, in order
  int64_t gradients = 0;                                // all blocks that were marked so, together
  int64_t held = 0;                                     // at the last end of a forward pass
};
MemoryTimeline timeline_of(const MemoryTrace& trace);

}  // namespace compact
