// SPDX-License-Identifier: Apache-2.0
// The progress of a run: the results of its steps, counted as soon as they are read, and times.
#pragma once

#include <chrono>
#include <cstdint>

#include "compact/networks/network.h"
#include "compact/optim/optimizer.h"
#include "compact/parallel/group.h"
#include "compact/train/results.h"
#include "compact/train/run_state.h"
#include "compact/train/step_results.h"

namespace compact {

class RunProgress {
 public:
  // Counts losses into `state` and seconds into `figures`. `late`: results are read one step late,
  // as on a GPU. Losses of several ranks are summed before the update.
  RunProgress(const Network& network, const Optimizer& optimizer, bool late, Group& group,
              RunState& state, RunFigures& figures);

  // Around every step.
  void begin();
  void end();
  // To be called in place of end() where a step stopped inside: reads all that was launched. Throws
  // NonFiniteError.
  void stop_inside();
  // To be called inside a step: add_loss() before a backward pass, add_norm() before the update.
  // Both are read at once where the update re-draws projections, since no guard holds that back.
  // Throw NonFiniteError.
  void add_loss(const at::Tensor& loss);
  void add_norm(const at::Tensor& norm);
  const at::Tensor& guard() const { return results_.guard(); }

  // To be called before weights, figures or losses are looked at: waits until all that was launched
  // is done, and counts it. Throws NonFiniteError.
  void settle();
  bool is_settled() const { return launched_ == 0; }
  double grad_norm() const { return grad_norm_; }  // of the latest update that was counted

 private:
  using Clock = std::chrono::steady_clock;
  void count(bool all);
  void add_losses_of_all();

  at::Device device_;
  const Optimizer& optimizer_;
  const bool late_, releases_;
  Group& group_;
  // Losses of this rank's micro-batches where there are other ranks: their sum, or on a GPU the
  // losses that are still to be summed.
  double loss_ = 0;
  std::vector<at::Tensor> losses_;
  RunState& state_;
  RunFigures& figures_;
  StepResults results_;
  double grad_norm_ = 0;
  int64_t launched_ = 0;  // steps since everything was done
  Clock::time_point since_;
};

}  // namespace compact
