// SPDX-License-Identifier: Apache-2.0
// Planning in the words of a training configuration: what a step will take, the policy of
// --preset auto, and how much memory there is.
#pragma once

#include <string>
#include <vector>

#include "compact/config/config.h"
#include "compact/config/memory_limit.h"
#include "compact/plan/budget.h"
#include "compact/plan/request.h"
#include "compact/plan/speed.h"
#include "compact/tasks/task.h"

namespace compact {

// --budget in bytes; without one the largest number.
int64_t budget_of(const TrainConfig& config);

// A step of the task under a configuration: that of the task, or one that differs in type, block or
// batch. `task` must outlive it.
StepRequest step_request(const TrainConfig& config, const Task& task, const Policy& policy,
                         c10::DeviceType device);

// Floating-point operations of products and bytes that a GPU reaches a second; 0: what is known of
// the one that plans are for (gpu_card.h).
struct StatedSpeed {
  double products = 0, bytes = 0;
};
GpuRates gpu_rates(const TrainConfig& config, const StatedSpeed& stated);

// What runs in a step on a GPU.
std::vector<Operation> planned_operations(const TrainConfig& config, const Task& task,
                                          const Policy& policy);

// Speeds for choosing: measured on this machine for the CPU, else those of a GPU.
Speed speed_for(const TrainConfig& config, const Task& task, c10::DeviceType device,
                const StatedSpeed& stated);

// What chooses for --preset auto of what is allowed. `task` must outlive it. Throws InputError on a
// task whose network has no segments to choose for, or none of what is allowed.
BudgetPlanner planner_for(const TrainConfig& config, const Task& task, c10::DeviceType device,
                          Allowed allowed, const Speed& speed);
BudgetPlanner planner_for(const TrainConfig& config, const Task& task, c10::DeviceType device,
                          const StatedSpeed& stated = {});
// "auto     ..." lines: the peak and what it costs.
std::vector<std::string> choice_lines(const Chosen& chosen);

// The plan of a policy, and, where that passes the budget and the policy quantizes, of the same
// policy in the most bits that fit (8, 4, 2, 1), which it becomes; `note` says so.
StepPlan plan_within(const TrainConfig& config, const Task& task, Policy& policy,
                     c10::DeviceType device, int64_t budget, std::string& note);

// Settings under which a step takes no more than so many bytes, the mildest first; empty where none
// was found.
std::string settings_that_fit(const TrainConfig& config, const Task& task, const Policy& policy,
                              c10::DeviceType device, int64_t bytes);

// Throws BudgetError where the planned step passes the limit; the error names settings that would
// fit where `advises` is true and the run is not resumed.
void check_fits(const TrainConfig& config, const Task& task, const Policy& policy,
                c10::DeviceType device, const StepPlan& plan, const MemoryLimit& limit,
                bool resumed, bool advises = true);

}  // namespace compact
