// SPDX-License-Identifier: Apache-2.0
// The sums of gradients over the ranks of a group, begun inside the backward pass as gradients
// become whole: those of blocks above are summed while the blocks below them run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <vector>

#include "compact/parallel/group.h"

namespace compact {

struct OptimizerOptions;
struct ParameterState;

class Reduction {
 public:
  // Sums the gradients of `states`; both arguments must outlive it.
  Reduction(const OptimizerOptions& options, std::vector<ParameterState>& states);

  // A backward pass whose gradients are summed. Throws InputError after the last of a step.
  void begin(bool last);
  // Ends a pass that is not the last: waits for its sums.
  void end_pass();
  bool has_begun() const { return begun_; }
  bool is_done() const { return done_; }  // finish() was called in this step
  // The gradient of states[index] is whole, in that pass. Each matrix is summed by itself, in the
  // same order on all ranks, from the last parameter to the first, whichever is whole first.
  void ready(size_t index);
  // All gradients are whole: those of vectors are summed as one tensor. Afterwards every rank has
  // the sums of parameters without an owner, owners those of their own; all others are released.
  void finish();
  // A step is over, or has failed: drops all of it.
  void begin_step();

 private:
  struct Started {
    size_t index;
    at::Tensor dense;  // what is summed, in the gradient's order
    PendingPtr pending;
  };
  void start(size_t index);
  void start_next();
  void start_all();
  void retire();
  void sum_vectors();

  Group& group_;
  std::vector<ParameterState>& states_;
  at::ScalarType type_;  // of sums
  bool every_pass_;      // sums owners' matrices in each pass, into ParameterState::total
  std::vector<size_t> matrices_, vectors_;  // in the order of sums
  std::vector<bool> ready_;
  size_t next_ = 0;  // of matrices_
  bool begun_ = false, last_ = false, done_ = false;
  std::deque<Started> started_;
};

}  // namespace compact
