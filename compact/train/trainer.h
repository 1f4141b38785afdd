// SPDX-License-Identifier: Apache-2.0
// A training run from configuration to final model: the loop of `compact train`.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>

#include "compact/config/config.h"
#include "compact/parallel/place.h"

namespace compact {

// For programs that drive a run.
struct TrainHooks {
  // Asked after every micro-batch with the number of updates done and of the micro-batch in the
  // update; true: save at once, with gradients pending, and return kExitInterrupt.
  std::function<bool(int64_t step, int64_t micro)> stop;
  // Asked, with the number of attempts made, where the model of a finished run could not be written
  // (the disk is full), before the next attempt; false: give up. By default there is one every ten
  // seconds for ten minutes, or until a signal comes.
  std::function<bool(int64_t attempts)> wait;
  // On the CPU, too, the results of a step are read late (step_results.h), as on a GPU.
  bool late_results = false;
  // Steps are replayed from a recording (step_graph.h), as under --cuda_graph on a GPU.
  bool replayed_steps = false;
  // Which of several processes this one is (`compact train` reads it from the environment).
  Place place = {};
  // Called before the step is planned; what it returns lives until that is done.
  std::function<std::shared_ptr<void>()> planning = {};
};

// Runs, writing progress to `console` (with a progress bar if it is a `terminal`), and in
// output_dir: metrics.jsonl, events.out.tfevents.*, checkpoint-N/, at the end config.json,
// model.safetensors and all_results.json. Returns kExitOk, or kExitInterrupt or kExitTerminate
// after a signal. Throws InputError and NonFiniteError; of several processes LeftByAnother where
// another one says why all end, RankError where this one does (failures.h).
int train(const TrainConfig& config, std::ostream& console, bool terminal = false,
          const TrainHooks& hooks = {});

}  // namespace compact
