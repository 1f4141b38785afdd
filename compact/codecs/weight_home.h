// SPDX-License-Identifier: Apache-2.0
// Where weights are that a process does not have all the time (ZeRO's stage 3): what reads them
// fetches them before and lets go of them after.
#pragma once

namespace compact {

// Weights come and go by the segments that read them, which have numbers from the first to the
// last. Where there are several processes, all make the same calls in the same order.
class WeightHome {
 public:
  virtual ~WeightHome() = default;
  // The weights of a segment are there when it returns, until as many release() as fetch(). The
  // next segment's, in the direction of the pass, are on their way.
  virtual void fetch(int segment, bool backward) = 0;
  virtual void release(int segment) = 0;
};

}  // namespace compact
