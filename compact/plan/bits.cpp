// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/bits.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "compact/base/check.h"
#include "compact/plan/solve.h"

namespace compact {

double uniform_error(double bits, bool zero_code) {
  const double top = std::exp2(bits) - (zero_code ? 2 : 1);
  return 1 / (top * top);
}

BitAllocation allocate_exact(std::span<const TensorBits> tensors, int64_t budget) {
  double most = 0;
  int64_t least = 0;
  for (const TensorBits& t : tensors) {
    COMPACT_CHECK(!t.choices.empty(), "[bits] `", t.name, "` has no choices");
    COMPACT_CHECK(t.sensitivity >= 0 && std::isfinite(t.sensitivity), "[bits] sensitivity of `",
                  t.name, "` must not be negative, is ", t.sensitivity);
    most += t.sensitivity * std::ranges::max(t.choices, {}, &BitChoice::error).error;
    least += std::ranges::min(t.choices, {}, &BitChoice::bytes).bytes;
  }
  COMPACT_CHECK(least <= budget, "[bits] the fewest bits take ", least, " bytes, the budget is ",
                budget);
  const std::vector<int64_t> nothing(tensors.size());
  LayerProblem problem{
      .options = {}, .forward_base = nothing, .backward_base = nothing, .after_base = nothing};
  for (const TensorBits& t : tensors) {
    std::vector<LayerOption>& options = problem.options.emplace_back();
    for (const BitChoice& c : t.choices) {
      const double part = most > 0 ? t.sensitivity * c.error / most : 0;
      options.push_back({.saved = c.bytes, .cost = std::llround(std::ldexp(part, 60))});
    }
  }
  const LayerSolution best = solve(problem, budget).value();
  BitAllocation all;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto chosen = static_cast<size_t>(best.choice[i]);
    all.chosen.push_back(chosen);
    all.bytes += tensors[i].choices[chosen].bytes;
    all.error += tensors[i].sensitivity * tensors[i].choices[chosen].error;
  }
  return all;
}

}  // namespace compact
