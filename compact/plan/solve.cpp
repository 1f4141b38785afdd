// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/solve.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>

namespace compact {
namespace {

constexpr size_t kBeam = 64;  // states of a layer in the search for a first solution

struct State {
  int64_t saved, cost;
  int before, option;  // of the layer before; of this layer
};

// The most that earlier layers may keep where a layer takes this option; below 0: it does not fit.
int64_t room_before(const LayerProblem& p, size_t layer, const LayerOption& option,
                    int64_t budget) {
  return budget -
         std::max({p.forward_base[layer] + option.forward, p.backward_base[layer] + option.backward,
                   p.after_base[layer], p.top_base + option.saved});
}

// The relaxed problem of layers [first, end): only the sum of what they keep is bounded, and a
// layer may take two options in parts.
class Relaxed {
 public:
  explicit Relaxed(const LayerProblem& p) : suffixes_(p.options.size() + 1) {
    std::vector<Step> steps;
    suffixes_.back().sums = {{0, 0, 0}};
    for (size_t layer = p.options.size(); layer-- > 0;) {
      Suffix& s = suffixes_[layer];
      s.saved = suffixes_[layer + 1].saved;
      s.cost = suffixes_[layer + 1].cost;
      add_layer(p.options[layer], s, steps);
      std::ranges::stable_sort(steps, [](const Step& a, const Step& b) { return a.rate > b.rate; });
      Step sum{0, 0, 0};
      for (const Step& step : steps) {
        s.sums.push_back({sum.bytes, sum.gain, step.rate});
        sum.bytes += step.bytes, sum.gain += step.gain;
      }
      s.sums.push_back({sum.bytes, sum.gain, 0});
    }
  }

  // No cost of layers [first, end) that keep at most `bytes` is below it.
  int64_t bound(size_t first, int64_t bytes) const {
    const Suffix& s = suffixes_[first];
    const auto room = static_cast<double>(bytes - s.saved);
    if (room < 0) return kAnyCost;
    const auto after = std::ranges::upper_bound(s.sums, room, {}, &Step::bytes);
    const Step& at = *std::prev(after);
    const double gain = at.gain + (room - at.bytes) * at.rate;
    // Rounded down; exact where nothing is gained, and so where no layers are to come.
    return gain > 0 ? s.cost - static_cast<int64_t>(std::ceil(gain * (1 + 1e-12))) - 1 : s.cost;
  }

 private:
  struct Step {
    double bytes, gain, rate;
  };
  struct Suffix {
    int64_t saved = 0, cost = 0;  // where all keep the least
    std::vector<Step> sums;       // bytes and gain before each step, and its rate
  };

  // Steps between neighbours on the lower convex hull of (saved, cost).
  static void add_layer(std::vector<LayerOption> options, Suffix& s, std::vector<Step>& steps) {
    std::ranges::sort(options, [](const LayerOption& a, const LayerOption& b) {
      return a.saved != b.saved ? a.saved < b.saved : a.cost < b.cost;
    });
    std::vector<LayerOption> hull;
    const auto step = [](const LayerOption& a, const LayerOption& b) {
      const auto bytes = static_cast<double>(b.saved - a.saved),
                 gain = static_cast<double>(a.cost - b.cost);
      return Step{bytes, gain, gain / bytes};
    };
    for (const LayerOption& o : options) {
      if (!hull.empty() && o.cost >= hull.back().cost) continue;
      while (hull.size() > 1 &&
             step(hull[hull.size() - 2], hull.back()).rate <= step(hull.back(), o).rate) {
        hull.pop_back();
      }
      hull.push_back(o);
    }
    s.saved += hull.front().saved;
    s.cost += hull.front().cost;
    for (size_t i = 1; i < hull.size(); ++i) steps.push_back(step(hull[i - 1], hull[i]));
  }

  std::vector<Suffix> suffixes_;
};

// How much all layers together may keep, so that the loss and the passes of the last layer fit.
int64_t room_of(const LayerProblem& p, int64_t budget) {
  if (p.options.empty()) return budget - p.top_base;
  int64_t forward = kAnyCost, backward = kAnyCost;
  for (const LayerOption& o : p.options.back()) {
    forward = std::min(forward, o.forward - o.saved);
    backward = std::min(backward, o.backward - o.saved);
  }
  return budget -
         std::max({p.top_base, p.forward_base.back() + forward, p.backward_base.back() + backward});
}

// States of bytes and cost of the layers up to one, from those of the layers before it: the ones
// that no other beats in both, by growing bytes; of equal ones the first. Each option makes a row
// of such states of the one before; the rows are merged, and what is beaten is skipped.
std::vector<State> next_states(const LayerProblem& p, size_t layer, const std::vector<State>& from,
                               int64_t budget) {
  struct Row {
    int64_t saved, cost;  // of the state at `at`
    size_t at, end;       // in `from`
    int option;
    bool operator>(const Row& other) const {
      return std::tie(saved, cost, at, option) >
             std::tie(other.saved, other.cost, other.at, other.option);
    }
  };
  const std::vector<LayerOption>& options = p.options[layer];
  std::priority_queue<Row, std::vector<Row>, std::greater<>> rows;
  std::vector<State> kept;
  // The row's first state from `at` on that what is kept does not beat.
  const auto add = [&](Row row) {
    const LayerOption& option = options[row.option];
    const auto begin = from.begin() + static_cast<int64_t>(row.at),
               end = from.begin() + static_cast<int64_t>(row.end);
    const auto next = kept.empty() ? begin : std::partition_point(begin, end, [&](const State& s) {
      return s.cost + option.cost >= kept.back().cost;
    });
    if (next == end) return;
    row.at = static_cast<size_t>(next - from.begin());
    row.saved = next->saved + option.saved;
    row.cost = next->cost + option.cost;
    rows.push(row);
  };
  for (size_t o = 0; o < options.size(); ++o) {
    const int64_t room = room_before(p, layer, options[o], budget);
    const auto end = std::ranges::upper_bound(from, room, {}, &State::saved);
    add({0, 0, 0, static_cast<size_t>(end - from.begin()), static_cast<int>(o)});
  }
  while (!rows.empty()) {
    Row row = rows.top();
    rows.pop();
    if (kept.empty() || row.cost < kept.back().cost) {
      kept.push_back({row.saved, row.cost, static_cast<int>(row.at), row.option});
      ++row.at;
    }
    add(row);
  }
  return kept;
}

// One pass under a budget: the cheapest solution of a cost of at most `most`, any one of equal
// cost. Keeps at most `width` states of a layer, those with the least bound; then the result need
// not be the cheapest.
std::optional<LayerSolution> pass(const LayerProblem& p, const Relaxed& relaxed, int64_t budget,
                                  int64_t most, size_t width) {
  if (p.rest > budget) return std::nullopt;
  const int64_t room = room_of(p, budget);
  std::vector<std::vector<State>> levels = {{{0, 0, -1, -1}}};
  int64_t states = 0;
  for (size_t layer = 0; layer < p.options.size(); ++layer) {
    const auto promise = [&](const State& s) {
      return s.cost + relaxed.bound(layer + 1, room - s.saved);
    };
    std::vector<State> kept = next_states(p, layer, levels.back(), budget);
    std::erase_if(kept, [&](const State& s) { return promise(s) > most; });
    if (kept.size() > width) {
      const auto after_least = kept.begin() + 1;  // the first keeps the least: it stays
      std::ranges::nth_element(after_least, after_least + static_cast<int64_t>(width) - 1,
                               kept.end(), {}, promise);
      kept.resize(width);
      std::ranges::sort(kept, {}, &State::saved);
    }
    if (kept.empty()) return std::nullopt;
    states += static_cast<int64_t>(kept.size());
    levels.push_back(std::move(kept));
  }
  const auto& last = levels.back();
  auto at = static_cast<int>(std::ranges::min_element(last, {}, &State::cost) - last.begin());
  LayerSolution solution{.cost = last[at].cost, .states = states};
  for (size_t layer = p.options.size(); layer > 0; --layer) {
    const State& state = levels[layer][at];
    solution.choice.push_back(state.option);
    at = state.before;
  }
  std::ranges::reverse(solution.choice);
  solution.peak = peak_of(p, solution.choice);
  return solution;
}

// The cheapest of at most `most`: first a quick solution, whose cost then bounds the exact pass.
std::optional<LayerSolution> cheapest(const LayerProblem& p, const Relaxed& relaxed, int64_t budget,
                                      int64_t most) {
  const auto quick = pass(p, relaxed, budget, most, kBeam);
  if (quick) most = quick->cost;
  return pass(p, relaxed, budget, most, std::numeric_limits<size_t>::max());
}

// The peak where every layer keeps as little as it may, which leaves most room for later layers;
// nullopt where that does not fit.
std::optional<int64_t> least_keeping(const LayerProblem& p, int64_t budget) {
  if (p.rest > budget) return std::nullopt;
  int64_t saved = 0;
  std::vector<int> choice;
  for (size_t layer = 0; layer < p.options.size(); ++layer) {
    const std::vector<LayerOption>& options = p.options[layer];
    int best = -1;
    for (size_t o = 0; o < options.size(); ++o) {
      if (saved <= room_before(p, layer, options[o], budget) &&
          (best < 0 || options[o].saved < options[best].saved)) {
        best = static_cast<int>(o);
      }
    }
    if (best < 0) return std::nullopt;
    saved += options[best].saved;
    choice.push_back(best);
  }
  const int64_t peak = peak_of(p, choice);
  return peak <= budget ? std::optional(peak) : std::nullopt;
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
    peak =
        std::max({peak, p.forward_base[layer] + saved + option.forward,
                  p.backward_base[layer] + saved + option.backward, p.after_base[layer] + saved});
    saved += option.saved;
  }
  return std::max(peak, p.top_base + saved);
}

std::optional<LayerSolution> solve(const LayerProblem& problem, int64_t budget, int64_t most) {
  if (!fits(problem, budget)) return std::nullopt;
  const Relaxed relaxed(problem);
  std::optional<LayerSolution> best = cheapest(problem, relaxed, budget, most);
  if (!best) return best;
  const auto same_cost_in = [&](int64_t smaller) {
    auto other = pass(problem, relaxed, smaller, best->cost, kBeam);
    if (other) return other;
    return pass(problem, relaxed, smaller, best->cost, std::numeric_limits<size_t>::max());
  };
  // The least budget of the same cost, and under it a choice that does not depend on how the search
  // came there: the answer is the same for every budget that leads here.
  least_budget(least_peak(problem), best->peak, [&](int64_t smaller) -> std::optional<int64_t> {
    auto other = same_cost_in(smaller);
    if (!other) return std::nullopt;
    best = std::move(other);
    return best->peak;
  });
  return same_cost_in(best->peak);
}

bool solvable(const LayerProblem& problem, int64_t budget, int64_t most) {
  return fits(problem, budget) && cheapest(problem, Relaxed(problem), budget, most).has_value();
}

bool fits(const LayerProblem& problem, int64_t budget) {
  return least_keeping(problem, budget).has_value();
}

int64_t least_peak(const LayerProblem& problem) {
  const int64_t high = least_keeping(problem, kAnyCost).value_or(0);
  return least_budget(0, high, [&](int64_t budget) { return least_keeping(problem, budget); });
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
