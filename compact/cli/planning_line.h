// SPDX-License-Identifier: Apache-2.0
// Says on standard error that a plan is being made, where that takes longer than a second.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "compact/config/config.h"

namespace compact::cli {

class PlanningLine {
 public:
  // Prints "planning MODEL; ..." once, unless it is destroyed before. COMPACT_PLANNING_LINE_AFTER
  // in the environment: milliseconds in place of a second; with 0 it is printed at once.
  explicit PlanningLine(const TrainConfig& config);
  ~PlanningLine();
  PlanningLine(const PlanningLine&) = delete;
  PlanningLine& operator=(const PlanningLine&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ends_;
  bool over_ = false;
  std::thread waiting_;
};

}  // namespace compact::cli
