// SPDX-License-Identifier: Apache-2.0
// Planning in the words of a training configuration: what a step will take, the policy of
// --preset auto, and what would fit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compact/config/config.h"
#include "compact/config/memory_limit.h"
#include "compact/plan/request.h"
#include "compact/plan/search.h"
#include "compact/plan/speed.h"
#include "compact/tasks/task.h"

namespace compact {

// Floating-point operations of products and bytes that a GPU reaches a second; 0: what is known of
// the one that plans are for (gpu_card.h).
struct StatedSpeed {
  double products = 0, bytes = 0;
};

struct LargestBatch {
  int64_t batch = 0;
  std::string text;
};

// Plans of a task under one configuration, for one of the ranks that train it.
class Plans {
 public:
  // Rank 0's. `task` must outlive them.
  Plans(const TrainConfig& config, const Task& task, c10::DeviceType device, int64_t ranks = 1,
        const StatedSpeed& stated = {});
  // The plans of another rank.
  Plans at(int64_t rank) const;
  // The plans of a configuration that differs in type, block, batch or what is allowed.
  Plans with(const TrainConfig& config) const;

  const TrainConfig& config() const { return *config_; }
  const Task& task() const { return *task_; }
  c10::DeviceType device() const { return device_; }
  int64_t ranks() const { return ranks_; }
  // --budget in bytes; without one the largest number.
  int64_t budget() const;

  StepRequest request(const Policy& policy) const;
  StepPlan plan(const Policy& policy, std::vector<Operation>* operations = nullptr) const;
  // The plan of the rank whose step takes the most, of the eight that are dealt the most.
  StepPlan heaviest(const Policy& policy) const;
  // The plan of heaviest(). Where it passes the budget and the policy quantizes, the policy gets
  // the most bits that fit (8, 4, 2, 1), and the plan is of these; `note` says so.
  StepPlan within_budget(Policy& policy, std::string& note) const;

  // The policy that --preset auto chooses for all ranks, with the plan of the heaviest. Throws
  // InputError on a task whose network has no segments to choose for, or none of what is allowed,
  // and BudgetError, which names settings that would fit where it `advises`.
  Chosen choose(bool advises = true) const;
  // The search that chooses for this rank.
  std::unique_ptr<BudgetSearch> search(const Speed& speed) const;
  // Speeds for choosing: measured on this machine for the CPU, else those of a GPU.
  Speed speed() const;
  // The speeds of a GPU under a --matmul_precision.
  GpuRates gpu_rates(const std::string& matmul_precision) const;

  // Settings under which a step takes no more than so many bytes, the mildest first; empty where
  // none was found.
  std::string settings_that_fit(const Policy& policy, int64_t bytes) const;
  // Throws BudgetError where the planned step passes the limit; the error names settings that would
  // fit where `advises` is true and the run is not resumed.
  void check_fits(const Policy& policy, const StepPlan& plan, const MemoryLimit& limit,
                  bool resumed, bool advises = true) const;
  // The largest micro-batch whose step stays under --budget, with the policy or, under
  // --preset auto, with any that is allowed. Throws InputError without a budget, BudgetError where
  // not even the smallest fits.
  LargestBatch largest_batch(const Policy& policy) const;

 private:
  bool has_segments() const;
  SegmentGroups groups() const;
  Speed any_speed() const;
  std::string milder_settings(const Policy* policy, int64_t bytes) const;
  std::string lossless_preset(int64_t bytes) const;

  std::shared_ptr<const TrainConfig> config_;
  const Task* task_;
  c10::DeviceType device_;
  int64_t ranks_, rank_ = 0;
  StatedSpeed stated_;
};

// "auto     ..." lines: the peak and what it costs.
std::vector<std::string> choice_lines(const Chosen& chosen);

}  // namespace compact
