// SPDX-License-Identifier: Apache-2.0
#include "compact/optim/weight_shards.h"

#include <utility>

#include "compact/base/check.h"

namespace compact {

WeightShards::WeightShards(std::shared_ptr<Group> group, std::vector<std::vector<Shard>> segments)
    : group_(std::move(group)) {
  for (std::vector<Shard>& shards : segments) {
    for (const Shard& s : shards) {
      COMPACT_CHECK(s.weight.storage_offset() == 0 && s.weight.is_contiguous() &&
                        s.weight.storage().nbytes() == s.weight.nbytes(),
                    "[zero 3] a weight must have a storage of its own");
    }
    segments_.push_back({.shards = std::move(shards), .pending = {}, .present = true});
  }
  settle();
}

void WeightShards::begin(int number) {
  if (number < 0 || number >= static_cast<int>(segments_.size())) return;
  Segment& segment = segments_[static_cast<size_t>(number)];
  if (segment.present) return;
  const auto of_others = [&](auto call) {
    for (const Shard& s : segment.shards) {
      if (s.owner != group_->rank()) call(s.weight.detach());
    }
  };
  try {  // memory first: a rank that ran out between broadcasts would send fewer than others
    of_others(allocate_memory);
  } catch (...) {
    of_others(free_memory);
    throw;
  }
  segment.present = true;
  for (const Shard& s : segment.shards) {
    segment.pending.push_back(group_->begin_broadcast(s.weight.detach(), s.owner));
  }
}

void WeightShards::wait(Segment& segment) {
  for (PendingPtr& pending : std::exchange(segment.pending, {})) group_->wait(std::move(pending));
}

void WeightShards::fetch(int number, bool backward) {
  Segment& segment = segments_.at(static_cast<size_t>(number));
  begin(number);
  begin(backward ? number - 1 : number + 1);
  wait(segment);
  ++segment.readers;
}

void WeightShards::release(int number) {
  Segment& segment = segments_.at(static_cast<size_t>(number));
  if (--segment.readers == 0 && !is_gathered()) let_go(segment);
}

void WeightShards::let_go(Segment& segment) {
  wait(segment);
  for (const Shard& s : segment.shards) {
    if (s.owner != group_->rank()) free_memory(s.weight);
  }
  segment.present = false;
}

void WeightShards::settle() {
  if (is_gathered()) return;
  for (Segment& segment : segments_) {
    if (segment.present && segment.readers == 0) let_go(segment);
  }
}

void WeightShards::gather() {
  if (gathered_++ > 0) return;
  for (int i = 0; i < static_cast<int>(segments_.size()); ++i) {
    begin(i);
    wait(segments_[static_cast<size_t>(i)]);
  }
}

void WeightShards::scatter() {
  if (--gathered_ == 0) settle();
}

}  // namespace compact
