// SPDX-License-Identifier: Apache-2.0
// The files that a run writes into its folder before it is done. A failure on the way (the disk is
// full) is a warning, since writing may be possible later.
#pragma once

#include <cstdint>
#include <string>

#include "compact/config/config.h"
#include "compact/networks/network.h"
#include "compact/ops/policy/policy.h"
#include "compact/optim/optimizer.h"
#include "compact/report/metrics.h"
#include "compact/tasks/task.h"
#include "compact/train/run_state.h"

namespace compact {

class RunOutput {
 public:
  // Clears the folder for a run that starts at its beginning and writes policy.txt,
  // train_config.json and the task's files. `last_step`, `ends`: see MetricsWriter. Throws
  // InputError where that cannot be written. The folder must be this run's alone:
  // take_output_folder().
  RunOutput(const TrainConfig& config, const Task& task, const Policy& policy, int64_t last_step,
            bool ends, Console& console);

  MetricsWriter& metrics() { return metrics_; }
  // Adds long tables to memory.txt, where a resumed run finds its earlier ones, or a warning; under
  // --verbose they are on the console, too.
  void write_memory(const std::string& tables);
  // bits.policy, or a warning.
  void write_bits(const std::string& bits);
  // Writes waiting figures and checkpoint-<step>, then removes those beyond --save_total_limit.
  // Returns the checkpoint's path. Throws InputError where it cannot be written. `why` ends the
  // line on the console. `other_parts`: of the other ranks, where they have any.
  std::string write_checkpoint(const RunState& state, const Network& model,
                               const Optimizer& optimizer, const std::string& why,
                               const OtherParts& other_parts = {});

 private:
  const TrainConfig& config_;
  const Task& task_;
  const Policy& policy_;
  Console& console_;
  MetricsWriter metrics_;
  std::string memory_;  // memory.txt
};

}  // namespace compact
