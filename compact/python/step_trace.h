// SPDX-License-Identifier: Apache-2.0
// The memory of a step of another program's model on the meta device, in time. For a process
// that does nothing but plan: it replaces torch's allocators and operations for that device.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "compact/ops/memory/memory_trace.h"
#include "compact/plan/groups.h"
#include "compact/plan/meta/sums.h"
#include "compact/plan/operations.h"
#include "compact/plan/step_memory.h"

namespace compact {

// Makes this process one that plans for a type of device, "cpu" or "cuda": of a GPU its name,
// capability (10 * major + minor), processors and bytes of shared memory for a block.
void prepare_planning(const std::string& device, const std::string& name, int64_t capability,
                      int64_t processors, int64_t shared_memory);
// A GPU that need not be here, by a short name as `plan --gpu` takes it or by its driver's: name,
// capability, processors and shared memory, as prepare_planning() takes them. Throws InputError.
std::tuple<std::string, int64_t, int64_t, int64_t> gpu_figures(const std::string& name);
// Name of the planned GPU, and bytes of its memory that a step may take; 0: not known.
std::tuple<std::string, int64_t> planned_gpu_memory();
// Bytes of all tensors on the meta device.
int64_t planned_bytes();

// From its making to stop() every allocation of meta tensors is recorded; one at a time.
class StepTrace final : public torch::CustomClassHolder {
 public:
  // `outside`: bytes that live before it and are none of the step's. `operations`, `segments`:
  // whether those of the step are recorded.
  StepTrace(int64_t outside, bool operations, bool segments);
  ~StepTrace() override;
  // From here on it is batch, forward, loss, backward, gradient norm or optimizer. Blocks record
  // their own moments. Throws InputError on another name.
  void moment(const std::string& name);
  void gradient(const at::Tensor& gradient);
  void stop();

  // The trace that records segments now; null: there is none.
  static StepTrace* watching();
  SegmentGroups& groups() { return groups_; }

  // The most bytes of all tensors that live; of these, gradients, tensors saved for the backward
  // pass, and the others that were made in the step; and at which moment.
  std::tuple<int64_t, int64_t, int64_t, int64_t, std::string> peak() const;
  // On CUDA, what the caching allocator holds at the most, after `earlier` traces; else the peak.
  int64_t reserved(const std::vector<c10::intrusive_ptr<StepTrace>>& earlier) const;
  // As the search for a policy takes it: all that lives before the step counts as weights.
  StepMemory memory() const;
  std::vector<Operation> operations() { return std::move(operations_); }

 private:
  std::optional<InPlaceSums> sums_;
  std::optional<OperationRecorder> recorder_;
  std::vector<Operation> operations_;
  SegmentGroups groups_;
  int64_t before_ = 0;
  MemoryTrace trace_;
  MemoryTimeline timeline_;
};

}  // namespace compact
