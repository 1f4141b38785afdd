// SPDX-License-Identifier: Apache-2.0
// The weights of a network's segments, each with the rank that updates it (ZeRO's stage 3,
// Rajbhandari et al. 2020): the others have it from just before a segment runs until just after,
// forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "compact/codecs/weight_home.h"
#include "compact/parallel/group.h"

namespace compact {

class WeightShards final : public WeightHome {
 public:
  struct Shard {
    at::Tensor weight;  // with a storage of its own
    int owner = 0;
  };
  // The weights of each segment, which all ranks have; those that are not owners free them now.
  WeightShards(std::shared_ptr<Group> group, std::vector<std::vector<Shard>> segments);

  void fetch(int segment, bool backward) override;
  void release(int segment) override;

  // Frees weights that were fetched ahead and not read. To be called before weights change.
  void settle();
  // Fetches all weights, for readers of the whole model, until as many scatter() as gather().
  void gather();
  void scatter();
  bool is_gathered() const { return gathered_ > 0; }

 private:
  struct Segment {
    std::vector<Shard> shards;
    std::vector<PendingPtr> pending;  // broadcasts under way
    bool present = false;             // the weights are there, or being received
    int readers = 0;
  };
  void begin(int number);
  void wait(Segment& segment);
  void let_go(Segment& segment);

  std::shared_ptr<Group> group_;
  std::vector<Segment> segments_;
  int gathered_ = 0;
};

}  // namespace compact
