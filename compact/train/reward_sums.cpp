// SPDX-License-Identifier: Apache-2.0
#include "compact/train/reward_sums.h"

#include <ATen/ATen.h>

namespace compact {

RewardSums::RewardSums(at::Device device)
    : sums_(at::zeros({4}, at::TensorOptions(device).dtype(at::kDouble))) {}

void RewardSums::add(const at::Tensor& rewards) {
  sums_.narrow(0, 0, 2).add_(rewards.sum(0));
  sums_[2].add_(rewards.select(1, 0).gt(rewards.select(1, 1)).sum());
  sums_[3].add_(static_cast<double>(rewards.size(0)));
}

std::vector<double> RewardSums::of_all(Group& group) const {
  const at::Tensor own = sums_.cpu();
  std::vector<double> all;
  for (int64_t i = 0; i < own.numel(); ++i) all.push_back(group.sum_of(own[i].item<double>()));
  return all;
}

void RewardSums::reset(const std::vector<double>& sums) {
  if (sums.empty()) {
    sums_.zero_();
  } else {
    sums_.copy_(at::tensor(sums, at::kDouble));
  }
}

}  // namespace compact
