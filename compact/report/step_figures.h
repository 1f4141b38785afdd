// SPDX-License-Identifier: Apache-2.0
// The figures of a step: a row of metrics.jsonl and a line on the console.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compact/report/metrics.h"

namespace compact {

struct StepFigures {
  int64_t step = 0, steps = 0;  // updates done, and of the whole run
  double epoch = 0;
  double loss = 0;  // mean over the updates since the last row
  double grad_norm = 0, learning_rate = 0;
  double seconds = 0;                // of a step
  std::vector<double> rewards = {};  // of pairs, sums as RunState::rewards has them; else empty
  std::string unit = "tokens";
  double units = 0;  // of a step, on average
  int64_t peak_bytes = 0, held_bytes = 0, saved_bytes = 0;
  std::optional<int64_t> reserved_bytes;  // on a GPU
  std::optional<int64_t> resident_bytes;  // of the process, the most so far; on Linux
};

MetricsRow step_row(const StepFigures& figures);
std::string step_line(const StepFigures& figures);

}  // namespace compact
