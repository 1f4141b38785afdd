// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/solve.h"

#include <algorithm>
#include <limits>

namespace compact {
namespace {

struct State {
  int64_t saved, cost;
  int before, option;  // of the layer before; of this layer
};

// One pass under a budget; of solutions of equal cost any.
std::optional<LayerSolution> pass(const LayerProblem& p, int64_t budget) {
  if (p.rest > budget) return std::nullopt;
  std::vector<std::vector<State>> levels = {{{0, 0, -1, -1}}};
  int64_t states = 0;
  for (size_t layer = 0; layer < p.options.size(); ++layer) {
    const std::vector<State>& from = levels.back();
    std::vector<State> to;
    for (size_t s = 0; s < from.size(); ++s) {
      for (size_t o = 0; o < p.options[layer].size(); ++o) {
        const LayerOption& option = p.options[layer][o];
        const int64_t saved = from[s].saved;
        if (p.forward_base[layer] + saved + option.forward > budget ||
            p.backward_base[layer] + saved + option.backward > budget ||
            p.top_base + saved + option.saved > budget)
          continue;
        to.push_back({saved + option.saved, from[s].cost + option.cost, static_cast<int>(s),
                      static_cast<int>(o)});
      }
    }
    std::ranges::stable_sort(to, [](const State& a, const State& b) {
      return a.saved != b.saved ? a.saved < b.saved : a.cost < b.cost;
    });
    std::vector<State> kept;
    for (const State& state : to) {
      if (kept.empty() || state.cost < kept.back().cost) kept.push_back(state);
    }
    if (kept.empty()) return std::nullopt;
    states += static_cast<int64_t>(kept.size());
    levels.push_back(std::move(kept));
  }
  // Costs fall as sums grow: the last is the cheapest.
  LayerSolution solution{.cost = levels.back().back().cost, .states = states};
  int at = static_cast<int>(levels.back().size()) - 1;
  for (size_t layer = p.options.size(); layer > 0; --layer) {
    const State& state = levels[layer][at];
    solution.choice.push_back(state.option);
    at = state.before;
  }
  std::ranges::reverse(solution.choice);
  solution.peak = peak_of(p, solution.choice);
  return solution;
}

// The least budget in [low, high] under which `fits`, which holds for `high`.
template <class Fits>
int64_t least_budget(int64_t low, int64_t high, Fits fits) {
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (const std::optional<int64_t> reached = fits(middle)) {
      high = std::min(middle, *reached);
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace

int64_t peak_of(const LayerProblem& p, const std::vector<int>& choice) {
  int64_t saved = 0, peak = p.rest;
  for (size_t layer = 0; layer < choice.size(); ++layer) {
    const LayerOption& option = p.options[layer][choice[layer]];
    peak = std::max({peak, p.forward_base[layer] + saved + option.forward,
                     p.backward_base[layer] + saved + option.backward});
    saved += option.saved;
  }
  return std::max(peak, p.top_base + saved);
}

std::optional<LayerSolution> solve(const LayerProblem& problem, int64_t budget) {
  std::optional<LayerSolution> best = pass(problem, budget);
  if (!best) return best;
  // The least budget of the same cost: whatever budget led here, the answer is then the same.
  least_budget(0, best->peak, [&](int64_t smaller) -> std::optional<int64_t> {
    auto other = pass(problem, smaller);
    if (!other || other->cost > best->cost) return std::nullopt;
    best = std::move(other);
    return best->peak;
  });
  return best;
}

int64_t least_peak(const LayerProblem& problem) {
  int64_t high = 0;
  if (const auto any = pass(problem, std::numeric_limits<int64_t>::max() / 4)) high = any->peak;
  return least_budget(0, high, [&](int64_t budget) -> std::optional<int64_t> {
    const auto other = pass(problem, budget);
    return other ? std::optional(other->peak) : std::nullopt;
  });
}

std::vector<int> pareto(const std::vector<LayerOption>& options) {
  const auto beats = [](const LayerOption& a, const LayerOption& b) {
    return a.saved <= b.saved && a.forward <= b.forward && a.backward <= b.backward &&
           a.cost <= b.cost;
  };
  std::vector<int> kept;
  for (size_t i = 0; i < options.size(); ++i) {
    bool beaten = false;
    for (size_t j = 0; j < options.size() && !beaten; ++j) {
      beaten = j != i && beats(options[j], options[i]) && (!beats(options[i], options[j]) || j < i);
    }
    if (!beaten) kept.push_back(static_cast<int>(i));
  }
  return kept;
}

}  // namespace compact
