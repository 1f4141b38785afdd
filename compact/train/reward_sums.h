// SPDX-License-Identifier: Apache-2.0
// Rewards of pairs since the last line of a run.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "compact/parallel/group.h"

namespace compact {

class RewardSums {
 public:
  explicit RewardSums(at::Device device);
  // `rewards` of a micro-batch: f64 [pairs, 2], of chosen and rejected answers.
  void add(const at::Tensor& rewards);
  // Sums over all ranks, as RunState::rewards has them. All ranks call it together.
  std::vector<double> of_all(Group& group) const;
  // Begins anew: with such sums, or from zero.
  void reset(const std::vector<double>& sums = {});

 private:
  at::Tensor sums_;  // f64 [4] on the device, of this rank
};

}  // namespace compact
