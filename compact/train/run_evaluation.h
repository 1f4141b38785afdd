// SPDX-License-Identifier: Apache-2.0
// Evaluation while a run trains and at its end, and the best model among what it saw.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "compact/config/config.h"
#include "compact/networks/network.h"
#include "compact/parallel/group.h"
#include "compact/report/metrics.h"
#include "compact/tasks/evaluate.h"
#include "compact/tasks/task.h"
#include "compact/train/best_model.h"
#include "compact/train/run_state_json.h"

namespace compact {

class RunEvaluation {
 public:
  // Throws InputError where the best model is asked for and there is nothing to judge by.
  RunEvaluation(const TrainConfig& config, const Task& task, Console& console, Group& group);

  // Takes over the best model of a resumed run; returns a line where it does not hold here.
  std::string take_over(RunState& state) const {
    return best_ ? best_->take_over(state) : std::string();
  }
  // Whether it is time after this step.
  bool due(int64_t step) const;
  // To be called by all ranks, each with all weights; only rank 0 has `metrics`. Evaluates on
  // validation data, writes a row and a line, and keeps the model where it is the best so far; rank
  // 0 then returns true.
  bool validate(const Network& network, RunState& state, MetricsWriter* metrics);
  // After the last step: puts the best model into the network, where it is asked for and there is
  // one. Returns whether the network has changed.
  bool take_best(Network& network, RunState& state, MetricsWriter* metrics);
  // Evaluates on all data held out.
  Evaluations all(const Network& network, const RunState& state, MetricsWriter* metrics);

 private:
  EvalResult evaluate(const std::string& prefix, const Dataset& data, const Network& network,
                      const RunState& state, MetricsWriter* metrics);

  const TrainConfig& config_;
  const Task& task_;
  Console& console_;
  Group& group_;
  int64_t interval_, batch_;
  std::optional<BestModel> best_;
  bool all_kept_ = true;  // of the best so far
};

}  // namespace compact
