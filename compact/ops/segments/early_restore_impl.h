// SPDX-License-Identifier: Apache-2.0
// Copies to the host and back that run beside other segments: those of a segment to the host beside
// the forward pass of the next one, those back beside the backward pass before its own.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "compact/codecs/codec.h"

namespace torch::autograd {
struct Node;
}

namespace compact {

// To be called at the end of a segment's forward pass: settles what the segment before it on this
// thread left. `left`, what this segment leaves, is settled by the next call.
void settle_copies(std::span<const Encoded* const> left);

// Whether the current backward pass runs a node that it has not run so far.
bool runs_in_this_pass(torch::autograd::Node* node);

// Restores of what a segment holds that were begun before its turn in a backward pass. May be used
// by many threads.
class EarlyRestore {
 public:
  // Begins those of `held` that can be, for the current backward pass; once in a pass.
  void begin(std::span<const Encoded* const> held);
  // Puts the restores begun for the current pass in the place of `held`, which must be what begin()
  // was given, in the same order. What was begun for a pass that never came here is released.
  void take(std::span<Encoded* const> held);
  void drop();

 private:
  std::mutex mutex_;
  int pass_ = -1;
  std::vector<Encoded> begun_;  // undefined where it cannot be
};

}  // namespace compact
