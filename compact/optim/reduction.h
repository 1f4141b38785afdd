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

struct ParameterState;

class Reduction {
 public:
  // Gradients of these; both must outlive it.
  Reduction(Group& group, std::vector<ParameterState>& states);

  // The last backward pass of a step. Throws InputError where sums have begun.
  void begin();
  bool has_begun() const { return begun_; }
  bool is_done() const { return done_; }  // finish() was called in this step
  // The gradient of states[index] is whole, in that pass. Matrices are summed each for itself, from
  // the last to the first on all ranks, whichever is whole first.
  void ready(size_t index);
  // All gradients are whole: those of vectors are summed as one. Every rank has the sums of what
  // all of them update, an owner those of its own; the other ranks' are let go of.
  void finish();
  // A step is over, or has failed: nothing of it is kept.
  void begin_step();

 private:
  struct Started {
    size_t index;
    at::Tensor dense;  // what is summed, in the gradient's order
    PendingPtr pending;
  };
  void start(size_t index);
  void retire();
  void sum_vectors();

  Group& group_;
  std::vector<ParameterState>& states_;
  std::vector<size_t> matrices_, vectors_;  // in the order of sums
  std::vector<bool> ready_;
  size_t next_ = 0;  // of matrices_
  bool begun_ = false, done_ = false;
  std::deque<Started> started_;
};

}  // namespace compact
