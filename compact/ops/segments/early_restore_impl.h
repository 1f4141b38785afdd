// SPDX-License-Identifier: Apache-2.0
// Overlaps copies to the host and back with other segments: a segment's copies to the host run
// during the forward pass of the next one, its copies back during the backward pass before its own.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "compact/codecs/codec.h"

namespace torch::autograd {
struct Node;
}

namespace compact {

// To be called at the end of a segment's forward pass with what it holds, `left`, which the next
// call settles; settles what the segment before it on this thread left.
void settle_copies(std::span<const Encoded* const> left);

// Whether the current backward pass runs a node that it has not run so far.
bool runs_in_this_pass(torch::autograd::Node* node);

// Restores of what a segment holds that were begun before its turn in a backward pass. May be used
// by many threads.
class EarlyRestore {
 public:
  // Begins to fetch those of `held` that have fetch(), for the current backward pass; once a pass.
  void begin(std::span<const Encoded* const> held);
  // Replaces `held`, which must be what begin() was given, in the same order, by the restores begun
  // for the current pass. Restores begun for a pass that never came here are released.
  void replace(std::span<Encoded* const> held);
  void drop();

 private:
  std::mutex mutex_;
  int pass_ = -1;
  std::vector<Encoded> begun_;  // undefined where there is no fetch
};

}  // namespace compact
