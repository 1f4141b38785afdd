// SPDX-License-Identifier: Apache-2.0
// The results of a run's steps as the host reads them: losses and norms of gradients. A value that
// is not finite ends the run. They are read on time (the CPU), that is before an update, or late (a
// GPU), when the next step has been launched, so that the device never waits for the host. Updates
// are guarded on the device then: after a value that was not finite, they change nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "compact/optim/optimizer.h"

namespace compact {

class StepResults {
 public:
  // An update.
  struct Step {
    int64_t number = 0;  // from 1
    double loss = 0;     // of all its micro-batches
    double norm = 0;     // of all its gradients
  };
  // `releases`: some parameters are updated inside the backward pass.
  StepResults(at::Device device, const Optimizer& optimizer, bool late, bool releases);

  // f32 []: 0 as long as all was finite, NaN from then on; undefined where read on time. It is for
  // train_step(), which adds to it, and for the optimizer.
  const at::Tensor& guard() const { return guard_; }

  // Begins an update; `loss` is that of micro-batches made before this process.
  void begin(int64_t number, double loss);
  // The loss of its next micro-batch, and what ends it, the norm: f32 []. On time they throw
  // NonFiniteError.
  void add_loss(const at::Tensor& loss);
  void add_norm(const at::Tensor& norm);
  // The loss of the update that has begun, so far. Waits; throws NonFiniteError.
  double loss();

  // Updates that ended and were not taken: read late without the last one, which may be under way
  // yet, unless `all` are asked for. Waits for these; throws NonFiniteError.
  std::vector<Step> take(bool all);

 private:
  struct Launched {
    Step step;                        // with the loss of micro-batches made before
    at::Tensor values;                // on the host: losses of micro-batches, then the norm
    std::optional<c10::Event> there;  // after which they are; none: they are
  };
  // The end of the message on an update that was not made.
  const char* outcome(bool norm) const;
  double checked_loss(double value, int64_t number) const;
  double checked_norm(double value, int64_t number, const std::string& of) const;
  Step read(const Launched& launched) const;

  at::Device device_;
  const Optimizer& optimizer_;
  bool late_, releases_;
  at::Tensor guard_;
  Step step_;                       // that has begun
  std::vector<at::Tensor> losses_;  // of it; read late
  std::vector<Step> done_;          // read on time
  std::deque<Launched> launched_;   // read late
};

}  // namespace compact
