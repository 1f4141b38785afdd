// SPDX-License-Identifier: Apache-2.0
// Two steps run for real, and what they leave.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/plan/requests.h"

namespace compact {

struct TwoSteps {
  std::vector<at::Tensor> losses, weights;  // weights: trained ones
};
// `group`: of ranks that take a micro-batch each, with dealt weights under zero 3.
inline TwoSteps two_steps(StepRequest r, const std::shared_ptr<Group>& group = nullptr,
                          int zero = 0) {
  r.optimizer.group = group;
  r.optimizer.zero = zero;
  const std::unique_ptr<Network> network = r.network(at::kCPU);
  Optimizer optimizer(network->trained(), r.optimizer);
  shard_weights(*network, optimizer);
  TwoSteps result;
  for (int step = 0; step < 2; ++step) {
    const StepInputs batch = r.micro_batch(at::kCPU, 2 * step + (group ? group->rank() : 0));
    const StepHooks hooks{
        .before_backward = [&](const at::Tensor& loss) { result.losses.push_back(loss.detach()); }};
    train_step(
        *network, optimizer, {.loss_scale = 0.01, .learning_rate = 1e-2},
        [&](int64_t) { return batch; }, hooks);
  }
  optimizer.gather_weights();
  for (const Parameter* p : network->trained()) {
    result.weights.push_back(p->weight.detach().clone());
  }
  return result;
}

inline void expect_same(const TwoSteps& got, const TwoSteps& want, const std::string& text) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  ASSERT_EQ(got.weights.size(), want.weights.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_TRUE(at::equal(got.losses[i], want.losses[i])) << text;
  }
  for (size_t i = 0; i < want.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(got.weights[i], want.weights[i])) << text << " " << i;
  }
}

}  // namespace compact
