// SPDX-License-Identifier: Apache-2.0
// Steps of training that are recorded once and then replayed, as from a CUDA graph: the host makes
// one launch a step. What changes from one to the next lies where the recorded step reads it: the
// batch, and what the optimizer prepares.
#pragma once

#include <c10/core/StreamGuard.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "compact/codecs/recording.h"
#include "compact/plan/train_step.h"
#include "compact/tasks/task.h"
#include "compact/train/run_progress.h"

namespace compact {

class StepGraph {
 public:
  // On a GPU a stream of its own is the current one from here on, as long as this lives: make it
  // before the network. On the CPU steps run again with what they were given when they were
  // recorded, for tests.
  explicit StepGraph(at::Device device);

  // Throws InputError naming what changes from step to step and only the host knows, or what
  // changes its shape.
  static void check(const TrainConfig& config, int64_t ranks, const Task& task,
                    const Policy& policy, const Optimizer& optimizer);

  // Makes a whole step from the recording, and reports its results to `progress`. False: the step
  // is not like the one recorded, or nothing is recorded yet, and the caller makes it. A step is
  // recorded when two like it came before it; one of another form releases the recording. The
  // optimizer must be prepared for it.
  bool run(const Network& network, Optimizer& optimizer, const StepSettings& settings,
           const std::vector<Batch>& batches, RunProgress& progress);

  // Releases the recording and its memory, which nothing else can use; the next step that fits is
  // recorded again.
  void forget();

  int64_t replays() const { return replays_; }

 private:
  // The properties that a step must share with the recorded one.
  struct Form {
    int64_t micro_batches = 0;
    double loss_scale = 0;
    std::vector<std::vector<int64_t>> sizes;  // of all inputs and targets
    bool operator==(const Form&) const = default;
  };
  void record(const Network& network, Optimizer& optimizer, const StepSettings& settings,
              const std::vector<Batch>& batches);

  at::Device device_;
  std::optional<c10::StreamGuard> stream_;
  std::unique_ptr<Recording> recording_;  // null: none
  Form recorded_, latest_;
  int64_t alike_ = 0;  // steps of the latest form, one after the other
  // The inputs and outputs of the recorded step.
  std::vector<StepInputs> inputs_;
  std::vector<at::Tensor> losses_;
  at::Tensor norm_;
  int64_t replays_ = 0;
};

}  // namespace compact
