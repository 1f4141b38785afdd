// SPDX-License-Identifier: Apache-2.0
// The plan of a training step, made without running it: `compact plan`.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "compact/config/config.h"
#include "compact/train/plans.h"

namespace compact {

struct PlanOptions {
  TrainConfig config;
  std::string gpu;         // to plan for, by its short name; empty: the one here, else an H100
  StatedSpeed stated;      // of it
  int64_t world_size = 1;  // processes of the run
  bool max_batch = false;  // find the largest micro-batch
  bool pareto = false;     // show what memory buys
  std::string chart;       // a page of that curve; empty: none
  std::string json;        // a file for the figures; empty: none
};

// Prints the plan of the process that takes the most. Throws InputError on settings that no run
// could have, and BudgetError, once all is printed, where the step does not fit.
void print_plan(const PlanOptions& options, std::ostream& out);

}  // namespace compact
