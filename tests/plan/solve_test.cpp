// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/solve.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

namespace compact {
namespace {

LayerProblem random_problem(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int64_t>(random() % n); };
  LayerProblem p;
  const int64_t layers = 1 + below(5), kinds = 1 + below(4);
  for (int64_t l = 0; l < layers; ++l) {
    auto& options = p.options.emplace_back();
    for (int64_t k = 0; k < kinds; ++k) {
      const int64_t saved = below(20);
      options.push_back({saved, saved + below(10), saved + below(25), below(12)});
    }
    p.forward_base.push_back(below(10));
    p.backward_base.push_back(below(30));
    p.after_base.push_back(below(50));
  }
  p.top_base = below(30);
  p.rest = below(30);
  return p;
}

// Calls f with every choice.
void for_all(const LayerProblem& p, const std::function<void(const std::vector<int>&)>& f) {
  std::vector<int> choice(p.options.size(), 0);
  for (;;) {
    f(choice);
    size_t i = 0;
    while (i < choice.size() && ++choice[i] == static_cast<int>(p.options[i].size())) {
      choice[i++] = 0;
    }
    if (i == choice.size()) return;
  }
}

int64_t cost_of(const LayerProblem& p, const std::vector<int>& choice) {
  int64_t cost = 0;
  for (size_t i = 0; i < choice.size(); ++i) cost += p.options[i][choice[i]].cost;
  return cost;
}

TEST(Solve, EqualsBruteForce) {
  std::mt19937 random(1);
  int feasible = 0, infeasible = 0;
  for (int round = 0; round < 400; ++round) {
    const LayerProblem p = random_problem(random);
    int64_t least = INT64_MAX;
    for_all(p, [&](const auto& c) { least = std::min(least, peak_of(p, c)); });
    EXPECT_EQ(least_peak(p), least);
    for (int64_t budget = least - 2; budget < least + 60; budget += 7) {
      std::pair<int64_t, int64_t> best{INT64_MAX, INT64_MAX};
      for_all(p, [&](const auto& c) {
        if (peak_of(p, c) <= budget) best = std::min(best, {cost_of(p, c), peak_of(p, c)});
      });
      const auto got = solve(p, budget);
      ASSERT_EQ(got.has_value(), best.first < INT64_MAX);
      EXPECT_EQ(solvable(p, budget, best.first), got.has_value());
      EXPECT_FALSE(solvable(p, budget, best.first - 1) && got);
      ++(got ? feasible : infeasible);
      if (!got) continue;
      EXPECT_EQ(got->cost, best.first);
      EXPECT_EQ(got->peak, best.second);
      EXPECT_EQ(cost_of(p, got->choice), got->cost);
      EXPECT_EQ(peak_of(p, got->choice), got->peak);
    }
  }
  EXPECT_GT(feasible, 1000);
  EXPECT_GT(infeasible, 100);
}

TEST(Solve, PeakNeverRisesAsTheBudgetFalls) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const LayerProblem p = random_problem(random);
    int64_t before = INT64_MAX, cost = -1;
    for (int64_t budget = 200; budget > 0; --budget) {
      const auto got = solve(p, budget);
      if (!got) break;
      EXPECT_LE(got->peak, before);
      EXPECT_GE(got->cost, cost);
      before = got->peak;
      cost = got->cost;
    }
  }
}

TEST(Solve, ParetoDropsOnlyWhatIsBeaten) {
  const std::vector<LayerOption> options = {
      {1, 5, 5, 9}, {2, 5, 5, 9}, {1, 5, 5, 9}, {3, 4, 9, 9}, {0, 9, 9, 20}};
  EXPECT_EQ(pareto(options), (std::vector<int>{0, 3, 4}));
}

// The cheapest by a pass that leaves out nothing but what another state beats.
std::optional<int64_t> plain_cost(const LayerProblem& p, int64_t budget) {
  if (p.rest > budget) return std::nullopt;
  std::map<int64_t, int64_t> states = {{0, 0}};  // cost by what is kept
  for (size_t l = 0; l < p.options.size(); ++l) {
    std::map<int64_t, int64_t> next;
    for (const auto& [saved, cost] : states) {
      for (const LayerOption& o : p.options[l]) {
        if (p.forward_base[l] + saved + o.forward > budget ||
            p.backward_base[l] + saved + o.backward > budget || p.after_base[l] + saved > budget ||
            p.top_base + saved + o.saved > budget)
          continue;
        const auto [at, fresh] = next.try_emplace(saved + o.saved, cost + o.cost);
        at->second = std::min(at->second, cost + o.cost);
      }
    }
    states = std::move(next);
  }
  std::optional<int64_t> best;
  for (const auto& [saved, cost] : states) best = std::min(best.value_or(cost), cost);
  return best;
}

// More states than the quick search carries; layers alike and not; peaks anywhere in the step.
TEST(Solve, BoundsLeaveOutNoSolution) {
  std::mt19937 random(4);
  const auto below = [&](int n) { return static_cast<int64_t>(random() % n); };
  int found = 0;
  for (int round = 0; round < 60; ++round) {
    LayerProblem p;
    for (int l = 0; l < 14; ++l) {
      auto& options = p.options.emplace_back();
      if (l > 0 && round % 2) options = p.options[0];
      while (options.size() < 9) {
        const int64_t saved = 20 + below(200);
        options.push_back({saved, saved + below(60), saved + below(90), 20000 / saved + below(40)});
      }
      p.forward_base.push_back(below(100));
      p.backward_base.push_back(round % 3 ? below(300) : 160 * (14 - l));
      p.after_base.push_back(below(400));
    }
    p.top_base = below(300);
    p.rest = below(200);
    const int64_t least = least_peak(p);
    EXPECT_FALSE(plain_cost(p, least - 1));
    for (int64_t budget = least; budget < 2 * least; budget += 1 + least / 7) {
      const auto got = solve(p, budget);
      ASSERT_TRUE(got);
      EXPECT_EQ(got->cost, plain_cost(p, budget));
      EXPECT_EQ(cost_of(p, got->choice), got->cost);
      EXPECT_EQ(peak_of(p, got->choice), got->peak);
      EXPECT_LE(got->peak, budget);
      EXPECT_EQ(solve(p, budget, got->cost)->peak, got->peak);
      EXPECT_FALSE(solve(p, budget, got->cost - 1));
      // No smaller peak costs the same.
      EXPECT_NE(plain_cost(p, got->peak - 1), got->cost);
      ++found;
    }
  }
  EXPECT_GT(found, 300);
}

// 32 layers and 40 ways each, as a large model has.
TEST(Solve, ManyLayersCarryFewStates) {
  std::mt19937 random(3);
  LayerProblem p;
  std::vector<LayerOption> options;
  for (int k = 0; k < 40; ++k) {
    const auto saved = static_cast<int64_t>(random() % 300 + 4) * 65536;
    options.push_back({saved, saved + (40 << 20), saved + (50 << 20),
                       static_cast<int64_t>(3e9) / saved + static_cast<int64_t>(random() % 50)});
  }
  for (int l = 0; l < 32; ++l) {
    p.options.push_back(options);
    p.forward_base.push_back(1 << 30);
    p.backward_base.push_back((int64_t{2} << 30) - l * (20 << 20));
    p.after_base.push_back(0);
  }
  p.top_base = int64_t{1} << 30;
  const int64_t least = least_peak(p);
  const auto got = solve(p, least + (64 << 20));
  ASSERT_TRUE(got);
  EXPECT_LE(got->peak, least + (64 << 20));
  EXPECT_LT(got->states, 100000);
}

}  // namespace
}  // namespace compact
