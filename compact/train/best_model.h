// SPDX-License-Identifier: Apache-2.0
// The model of a run's best evaluation, kept in output_dir/best.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "compact/config/config.h"
#include "compact/networks/network.h"
#include "compact/tasks/evaluate.h"
#include "compact/tasks/task.h"
#include "compact/train/run_state_json.h"

namespace compact {

class BestModel {
 public:
  // By --metric_for_best_model, else the task's first metric, else the loss. Throws InputError
  // where there is nothing to evaluate, or evaluations have no such figure.
  BestModel(const TrainConfig& config, const Task& task);

  // After a resume: forgets the best so far where it is not in the folder, or was the best by
  // another metric. Returns a line that says so, else an empty one.
  std::string take_over(RunState& state) const;
  // The evaluation's figure, where it is better than that of the best so far. Throws InputError
  // where it has none.
  std::optional<double> better(const EvalResult& result, const RunState& state) const;
  // Keeps the model of this figure, and then its place in `state`. False, with a warning, where it
  // cannot be written.
  bool keep(double value, const Network& network, RunState& state, Console& console) const;
  // Copies the weights kept into the network.
  void load(Network& network) const;
  const std::string& metric() const { return metric_; }

 private:
  std::string folder_, metric_;
  const Task& task_;
};

}  // namespace compact
