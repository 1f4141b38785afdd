// SPDX-License-Identifier: Apache-2.0
// What a step of somebody else's model takes on the meta device, moment by moment. For a process
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
#include "compact/plan/meta/sums.h"
#include "compact/plan/step_memory.h"

namespace compact {

// Makes this process one that plans for a type of device, "cpu" or "cuda": of a GPU its name,
// capability (10 * major + minor), processors and bytes of shared memory for a block.
void prepare_planning(const std::string& device, const std::string& name, int64_t capability,
                      int64_t processors, int64_t shared_memory);
// A GPU that need not be here, by a short name as `plan --gpu` takes it or by its driver's: name,
// capability, processors and shared memory, as prepare_planning() takes them. Throws InputError.
std::tuple<std::string, int64_t, int64_t, int64_t> gpu_figures(const std::string& name);
// What the planned GPU is called, and bytes of its memory that a step may take; 0: not known.
std::tuple<std::string, int64_t> planned_gpu_memory();
// Operations of products (in half precision, in TF32) and bytes a second that the planned GPU
// reaches: stated, not measured.
std::tuple<double, double> planned_rates(bool half, bool tf32);

// From its making to stop() every allocation of meta tensors is recorded; one at a time.
class StepTrace final : public torch::CustomClassHolder {
 public:
  StepTrace();
  // From here on it is batch, forward, loss, backward, gradient norm or optimizer. Blocks tell of
  // theirs themselves. Throws InputError on another name.
  void moment(const std::string& name);
  void gradient(const at::Tensor& gradient);
  void stop();

  // Bytes of tensors, of all that lives: the most; of it gradients, what is saved for the backward
  // pass, and the rest that was made in the step; at which moment.
  std::tuple<int64_t, int64_t, int64_t, int64_t, std::string> peak() const;
  int64_t before() const { return before_; }
  // On CUDA, what the caching allocator holds at the most, after `earlier` traces; else the peak.
  int64_t reserved(const std::vector<c10::intrusive_ptr<StepTrace>>& earlier) const;
  // As the search for a policy takes it.
  StepMemory memory() const;

 private:
  std::optional<InPlaceSums> sums_;
  int64_t before_ = 0;
  MemoryTrace trace_;
  MemoryTimeline timeline_;
};

}  // namespace compact
