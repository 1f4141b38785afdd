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
};

inline void expect_equal_weights(const Toy& one, const Toy& two) {
  for (size_t i = 0; i < one.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(one.parameters[i].weight, two.parameters[i].weight)) << i;
  }
}

}  // namespace compact
