// SPDX-License-Identifier: Apache-2.0
// Weights that are in a process's memory only while a segment reads them (ZeRO's stage 3): its
// reader fetches them before and releases them after.
#pragma once

namespace compact {

// Weights are fetched by segments, which are numbered from first to last. All processes of a run
// make the same calls in the same order.
class WeightHome {
 public:
  virtual ~WeightHome() = default;
  // When it returns, the weights of a segment are there, until release() was called as often as
  // fetch(). Also begins to fetch those of the next segment in the direction of the pass.
  virtual void fetch(int segment, bool backward) = 0;
  virtual void release(int segment) = 0;
};

}  // namespace compact
