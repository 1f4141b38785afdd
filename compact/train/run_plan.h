// SPDX-License-Identifier: Apache-2.0
// The plan of a run: its policy where that is to be chosen, what a step will take, the limit that
// is enforced, and the comparison with a step that ran.
#pragma once

#include <optional>
#include <string>

#include "compact/plan/step_memory.h"
#include "compact/train/metrics.h"
#include "compact/train/planning.h"

namespace compact {

class RunPlan {
 public:
  // Under --preset auto `policy` is chosen here, unless the run is `resumed`, whose policy it is.
  // Throws BudgetError where a step would not fit; nothing is allocated then.
  RunPlan(const TrainConfig& config, const LlamaConfig& shape, at::Device device, Policy& policy,
          bool resumed, Console& console);
  // Limits the device's allocator from here on. Throws InputError where a GPU has less memory.
  void enforce() const;

  // Around one step on the CPU: prints what it took beside what was planned.
  void begin_record(const Llama& model, const Optimizer& optimizer);
  void mark_gradients();
  void end_record(int64_t step, Console& console);

  // "plan     peak 1.2 GiB in loss; limit ...".
  std::string line() const;
  // The whole table, after memory ran out.
  void explain(Console& console) const;
  int64_t peak_bytes() const { return plan_.memory.peak; }

 private:
  at::Device device_;
  StepShape step_;
  StepPlan plan_;
  MemoryLimit limit_;
  std::optional<StepRecorder> recorder_;
};

}  // namespace compact
