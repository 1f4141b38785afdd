// SPDX-License-Identifier: Apache-2.0
// The files of a finished run: the model, and all_results.json.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compact/config/config.h"
#include "compact/networks/network.h"
#include "compact/optim/optimizer.h"
#include "compact/parallel/group.h"
#include "compact/tasks/evaluate.h"
#include "compact/tasks/task.h"
#include "compact/train/run_state.h"

namespace compact {

// Figures of this process's part of a run.
struct RunFigures {
  std::vector<double> step_seconds;  // one per update
  std::vector<int64_t> step_samples;
  int64_t highest_peak_bytes = 0;  // over all updates
  int64_t planned_peak_bytes = 0;
  int64_t weights_bytes = 0;            // of this rank while it trains
  int64_t weights_outside_bytes = 0;    // the same on a GPU's host or on a disk
  std::vector<std::string> rank_peaks;  // of several ranks: "measured planned", by rank
  int64_t held_bytes = 0, saved_bytes = 0, reserved_bytes = 0;  // of the latest update
  GroupTraffic traffic;                                         // of all updates, with other ranks
  std::optional<int64_t> resident_bytes;  // of the process, the most so far; on Linux
};

// Mean of the latest updates' seconds, at most `count` of them and at least one.
double recent_step_seconds(const RunFigures& figures, int64_t count);

// The same of their samples.
double recent_step_samples(const RunFigures& figures, int64_t count);

// Median of the updates' seconds, at least one, without the first where there are more: it warms
// up.
double typical_step_seconds(const RunFigures& figures);

// The last line but one on the console.
std::string result_line(const RunState& state, const RunFigures& figures);

// Writes the model, or its adapters, into output_dir.
void write_model(const TrainConfig& config, const Task& task, const Network& network);

// Writes all_results.json there. What is measured in updates is left out where this process made
// none: the run was done when it was resumed.
void write_results(const TrainConfig& config, const RunState& state, const RunFigures& figures,
                   const Evaluations& evaluations, const Task& task, const Network& network,
                   const Optimizer& optimizer);

}  // namespace compact
