// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/budget_search.h"

#include <algorithm>
#include <limits>

#include "compact/plan/caching_allocator.h"

namespace compact {
namespace {

constexpr int64_t kBudgets = 128;  // of a level on CUDA

}  // namespace

int64_t BudgetSearch::beside() const { return device_ == c10::kCUDA ? kCublasWorkspaceBytes : 0; }

size_t BudgetSearch::level_count() {
  if (variants_.empty()) variants_ = levels();
  return variants_.size();
}

const BudgetSearch::Level& BudgetSearch::level(size_t number) {
  const auto known = levels_.find(number);
  if (known != levels_.end()) return known->second;
  const Variant& variant = variants_[number];
  Level l{
      .variant = variant, .cheapest = *best(variant, kAnyCost), .least = least_predicted(variant)};
  if (device_ == c10::kCUDA) {
    l.distance = std::max<int64_t>(1, (l.cheapest.solution.peak - l.least) / kBudgets);
  }
  return levels_.emplace(number, std::move(l)).first->second;
}

std::optional<Candidate> BudgetSearch::below(const Level& l, int64_t bytes) {
  const int64_t most = l.cheapest.solution.peak;
  if (bytes >= most) return l.cheapest;
  if (bytes < l.least) return std::nullopt;
  const int64_t steps = (most - bytes + l.distance - 1) / l.distance;
  return best(l.variant, std::max(l.least, most - steps * l.distance));
}

const Chosen& BudgetSearch::planned(const Candidate& c) {
  const auto known = planned_.find(c.text);
  if (known != planned_.end()) return known->second;
  Chosen chosen;
  chosen.policy = Policy::parse(c.text, "auto");
  chosen.plan = plan(chosen.policy);
  chosen.error = error(c);
  chosen.lossless = c.variant.moments.empty() && chosen.error == 0;
  chosen.states = c.solution.states;
  chosen.added_seconds = static_cast<double>(c.nanoseconds - usual_cost()) * 1e-9;
  chosen.seconds = step_seconds(chosen.plan.memory) + chosen.added_seconds;
  for (const BlockOption* layer : c.layers) chosen.added_products += layer->products;
  return planned_.emplace(c.text, std::move(chosen)).first->second;
}

// From the cheapest down, so that the first that fits is the answer of the whole set. Where a plan
// takes less than the solver predicts, a budget can lie between the two: what takes least meets it.
std::optional<Chosen> BudgetSearch::find(int64_t budget) {
  for (size_t i = 0; i < level_count(); ++i) {
    const Level& l = level(i);
    auto candidate = below(l, budget - beside());
    while (candidate) {
      const Chosen& chosen = planned(*candidate);
      if (chosen.plan.reserved <= budget) return chosen;
      candidate = below(l, candidate->solution.peak - 1);
    }
  }
  return budget >= least_peak() ? std::optional(*least_) : std::nullopt;
}

// The last level takes the least, as a rule; of the others only what could take less is planned.
int64_t BudgetSearch::least_peak() {
  if (least_) return least_->plan.reserved;
  int64_t peak = std::numeric_limits<int64_t>::max();
  const auto consider = [&](const Candidate& candidate) {
    const Chosen& chosen = planned(candidate);
    if (chosen.plan.reserved >= peak) return;
    peak = chosen.plan.reserved;
    least_ = &chosen;
  };
  for (size_t i = level_count(); i-- > 0;) {
    const Level& l = level(i);
    if (l.least + beside() >= peak) continue;
    consider(*below(l, l.least));
    auto candidate = below(l, peak - 1 - beside());
    while (candidate) {
      consider(*candidate);
      candidate = below(l, candidate->solution.peak - 1);
    }
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
