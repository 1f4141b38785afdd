// SPDX-License-Identifier: Apache-2.0
// The plan of a run: its policy where that is to be chosen, what a step will take, the limit that
// is enforced, and the comparison with a step that ran.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compact/parallel/place.h"
#include "compact/plan/step_memory.h"
#include "compact/report/metrics.h"
#include "compact/train/plans.h"

namespace compact {

class RunPlan {
 public:
  // Where the policy comes from under --preset auto: for a new run it is chosen here, for a resumed
  // run it stays, and other ranks get that of rank 0.
  enum class Origin : uint8_t { kNew, kResumed, kOfRank0 };
  // Throws BudgetError where a step would not fit; it names what would fit only for a new run.
  // Nothing is allocated then. Configuration and task must outlive it.
  RunPlan(const TrainConfig& config, const Task& task, at::Device device, Policy& policy,
          Origin origin, const Place& place);
  ~RunPlan();  // lifts the limit
  RunPlan(const RunPlan&) = delete;
  // Limits the device's allocator from here on; data sets on the CPU are not counted. Throws
  // InputError where a GPU has less memory.
  void enforce(int64_t outside);

  // Around one step on the CPU. `outside`: bytes of data sets. The end gives a table of what the
  // step took beside what was planned, and its peak as a line on the console; empty where no step
  // was recorded.
  void begin_record(const Network& network, const Optimizer& optimizer, int64_t outside);
  void mark_gradients();
  std::string end_record(int64_t step, const PassReport& report, Console& console);

  // Lines on the policy of `auto` or the budget, then "plan     peak 1.2 GiB in loss; limit ...".
  std::vector<std::string> lines() const;
  std::string line() const;  // of the plan alone, which bits may have changed
  // Every kind of saved tensor, and the peak by its parts.
  std::string table() const;
  // Whether a step stays under the budget with these bits (`slot NAME = ...` lines) added.
  bool fits(const std::string& bits) const;
  // To be called after memory ran out: prints the plan, under --verbose the whole table, and
  // settings that would take a tenth less. Lifts the limit.
  void explain(Console& console);
  // The highest planned peak of the policies that were in force.
  int64_t peak_bytes() const { return highest_peak_; }
  // Bytes on a GPU's host or on a disk, of weights and of the optimizer's state.
  int64_t weights_elsewhere() const { return plan_.memory.weights_outside; }
  int64_t state_elsewhere() const { return plan_.memory.outside; }
  // Plans with these bits from here on; `first`: no step was made without them.
  void take(const std::string& bits, bool first);
  // Every slot with its treatment and bytes.
  const std::vector<SlotBytes>& slots() const { return plan_.memory.slots; }

 private:
  void lift();
  bool limited() const;
  Policy with(const std::string& bits) const;

  const TrainConfig& config_;
  const Task& task_;
  Plans plans_;           // of this rank
  int64_t heaviest_ = 0;  // the rank whose step takes the most
  Policy policy_;
  bool advises_;
  at::Device device_;
  std::vector<std::string> choice_;  // lines about the policy
  StepPlan plan_;
  int64_t highest_peak_ = 0;
  MemoryLimit limit_;
  bool enforced_ = false;
  std::optional<StepRecorder> recorder_;
};

}  // namespace compact
