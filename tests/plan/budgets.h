// SPDX-License-Identifier: Apache-2.0
// Properties of policies that are chosen under budgets, whatever the network.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "compact/plan/search.h"
#include "tests/plan/requests.h"

namespace compact {

// Lossless policies for budgets from `off` down to the least peak: the peak of a real step, which
// is the planned one but for `tolerance`, stays under the budget and never rises, and predicted
// time never falls. `step`: of a policy.
inline void expect_peaks_fall(BudgetSearch& planner, int64_t off, int steps, double tolerance,
                              const std::function<StepRequest(const Policy&)>& step) {
  const int64_t least = planner.least_peak();
  int64_t before = INT64_MAX;
  double seconds = 0;
  int distinct = 0;
  for (int i = 0; i <= steps; ++i) {
    const int64_t budget = off - (off - least) * i / steps;
    const Chosen chosen = planner.choose(budget);
    const int64_t planned = chosen.plan.memory.peak;
    EXPECT_EQ(plan_step(step(chosen.policy)).memory.peak, planned);
    const int64_t real = run_for_real(step(chosen.policy)).peak;
    EXPECT_LE(static_cast<double>(std::abs(real - planned)), tolerance * static_cast<double>(real));
    EXPECT_LE(planned, budget);
    EXPECT_LE(planned, before);
    EXPECT_GE(chosen.seconds, seconds - 1e-9);
    EXPECT_TRUE(chosen.lossless);
    distinct += planned < before;
    before = planned;
    seconds = chosen.seconds;
  }
  EXPECT_GT(distinct, 5);
}

inline void expect_impossible_says_what_would_fit(BudgetSearch& planner) {
  const int64_t least = planner.least_peak();
  EXPECT_FALSE(planner.find(least - 1));
  try {
    planner.choose(least - 1, [] { return "less"; });
    FAIL() << "a budget below the least peak was met";
  } catch (const BudgetError& e) {
    EXPECT_EQ(e.peak, least);
    EXPECT_THAT(e.what(), testing::HasSubstr("would fit with less"));
  }
}

}  // namespace compact
