// SPDX-License-Identifier: Apache-2.0
// The suite whose tests are run for every row of the table of optimizers.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/optim/toy.h"

namespace compact {

class EveryOptimizer : public testing::TestWithParam<std::string> {
 protected:
  const OptimizerInfo* const kind_ = &optimizer_named(GetParam());

  // With all that a state may have.
  OptimizerOptions options(bool master, const std::string& moment) const {
    return {.kind = kind_,
            .weight_decay = 0.1,
            .master_weights = master,
            .carry_second = true,
            .f32_sums = true,
            .seed = 3,
            .moment = [=](const Parameter&) { return moment; }};
  }
};

inline void expect_equal_weights(const Toy& one, const Toy& two) {
  for (size_t i = 0; i < one.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(one.parameters[i].weight, two.parameters[i].weight)) << i;
  }
}

}  // namespace compact
