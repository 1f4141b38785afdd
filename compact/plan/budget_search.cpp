// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/budget_search.h"

#include <algorithm>
#include <limits>

namespace compact {

Chosen BudgetSearch::planned(const Candidate& c) const {
  Chosen chosen;
  chosen.policy = Policy::parse(c.text, "auto");
  chosen.plan = plan(chosen.policy);
  chosen.error = error(c);
  chosen.lossless = c.variant.moments.empty() && chosen.error == 0;
  chosen.states = c.solution.states;
  chosen.added_seconds = static_cast<double>(c.nanoseconds - usual_cost()) * 1e-9;
  chosen.seconds = step_seconds(chosen.plan.memory) + chosen.added_seconds;
  for (const BlockOption* layer : c.layers) chosen.added_products += layer->products;
  return chosen;
}

int64_t BudgetSearch::least_peak() {
  int64_t peak = std::numeric_limits<int64_t>::max();
  for (const Variant& level : levels()) {
    peak = std::min(peak, plan(Policy::parse(least(level).text, "auto")).reserved);
  }
  return peak;
}

std::vector<Variant> lossy_levels(const OptimizerOptions& optimizer, Allowed allowed) {
  std::vector<Variant> all = {{}};
  if (!allowed.quantize) return all;
  const std::string asked = optimizer.moment ? optimizer.moment(Parameter{}) : "f32";
  if (asked == "f32") all.push_back({.moments = "bf16"});
  if (asked != "f8") all.push_back({.moments = "f8"});
  all.push_back({.moments = all.back().moments, .quantize = true});
  return all;
}

}  // namespace compact
