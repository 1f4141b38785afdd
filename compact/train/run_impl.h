// SPDX-License-Identifier: Apache-2.0
// A run of training: what it consists of, and its parts in run_prepare.cpp, run_step.cpp and
// trainer.cpp.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compact/base/folder_lock.h"
#include "compact/optim/schedules.h"
#include "compact/parallel/group.h"
#include "compact/report/metrics.h"
#include "compact/tasks/task.h"
#include "compact/train/bit_chooser.h"
#include "compact/train/not_finite.h"
#include "compact/train/results.h"
#include "compact/train/reward_sums.h"
#include "compact/train/run_evaluation.h"
#include "compact/train/run_output.h"
#include "compact/train/run_plan.h"
#include "compact/train/run_progress.h"
#include "compact/train/run_state.h"
#include "compact/train/step_graph.h"
#include "compact/train/trainer.h"

namespace compact {

// Thrown before the first step where a signal asks the run to stop.
struct StoppedEarly {
  int exit_code;
  std::string line;
};

class Run {
 public:
  Run(const TrainConfig& config, Console& console, const TrainHooks& hooks,
      std::shared_ptr<Group> group)
      : c_(config), console_(console), hooks_(hooks), shared_(std::move(group)), group_(*shared_) {}
  int go();
  void show_plan();  // after memory ran out
  std::string about_not_finite() const {
    return compact::about_not_finite(c_, group_.size(), *optimizer_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  void prepare();
  // Its parts: the checkpoint to go on from, or none; data; what is known before memory is taken.
  std::string begin();
  void restore_machine(const std::string& checkpoint);
  void plan_without_data();
  void open_data();
  void restore(const std::string& checkpoint);
  void make_plan(bool resumed);
  void make_model(const std::string& checkpoint);
  void score_pairs_by_folder(const std::string& checkpoint);
  void score_pairs(const Network& reference, const std::string& checkpoint);
  void resume(const std::string& checkpoint);
  void describe();
  void choose_bits();
  bool step();  // false: stopped inside the update, gradients pending
  void log();
  void save(const char* why);
  void finish();
  void conclude();
  MetricsWriter* metrics() { return output_ ? &output_->metrics() : nullptr; }
  bool measures() const { return c_.measure_steps > 0; }  // and no more
  bool last() const {
    return s_.step >= (measures() ? std::min(c_.measure_steps, total_steps_) : total_steps_);
  }

  const TrainConfig& c_;
  Console& console_;
  const TrainHooks& hooks_;
  std::shared_ptr<Group> shared_;
  Group& group_;
  std::unique_ptr<FolderLock> folder_;
  std::vector<std::string> warnings_;
  at::Device device_ = at::kCPU;
  Policy policy_;
  Task task_;
  std::unique_ptr<Network> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Schedule> schedule_;
  std::optional<RunOutput> output_;
  RunState s_;
  int64_t total_steps_ = 0, saved_step_ = -1;
  std::string saved_;  // the checkpoint of that step
  // The latest update's.
  double learning_rate_ = 0;
  int64_t peak_bytes_ = 0;
  // The start of this process's part of the run, and the seconds of the parts before it.
  Clock::time_point started_ = Clock::now();
  double seconds_before_ = 0;
  RunFigures figures_;
  PassReport report_;            // of the latest micro-batch
  int64_t static_bytes_ = 0;     // weights and optimizer state
  std::string products_;         // how they are computed
  int64_t outside_bytes_ = 0;    // data sets
  int64_t workspace_bytes_ = 0;  // of products, on a GPU
  std::optional<RunPlan> plan_;
  std::optional<BitChooser> bits_;
  std::optional<RewardSums> rewards_;  // of tasks on pairs
  std::optional<RunEvaluation> evaluation_;
  std::optional<RunProgress> progress_;
  std::optional<StepGraph> graph_;
};

}  // namespace compact
