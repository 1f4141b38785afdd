// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/bits.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "compact/base/check.h"

namespace compact {
namespace {

double cost(const TensorBits& t, size_t choice) { return t.sensitivity * t.choices[choice].error; }

// Choices that no other beats in both bytes and error, by rising bytes.
std::vector<size_t> undominated(const TensorBits& t) {
  std::vector<size_t> order(t.choices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return std::pair(t.choices[a].bytes, cost(t, a)) < std::pair(t.choices[b].bytes, cost(t, b));
  });
  std::vector<size_t> kept;
  for (const size_t i : order) {
    if (kept.empty() || cost(t, i) < cost(t, kept.back())) kept.push_back(i);
  }
  return kept;
}

// A step from one choice of a tensor to a later one on the lower convex hull of (bytes, error).
struct Step {
  size_t tensor, to;
  int64_t bytes;
  double gain;
  double rate() const { return gain / static_cast<double>(bytes); }
};
std::vector<Step> hull_steps(const TensorBits& t, size_t tensor) {
  std::vector<size_t> hull;
  const auto rate = [&](size_t a, size_t b) {
    return (cost(t, a) - cost(t, b)) / static_cast<double>(t.choices[b].bytes - t.choices[a].bytes);
  };
  for (const size_t i : undominated(t)) {
    while (hull.size() > 1 && rate(hull[hull.size() - 2], hull.back()) <= rate(hull.back(), i)) {
      hull.pop_back();
    }
    hull.push_back(i);
  }
  std::vector<Step> steps;
  for (size_t k = 1; k < hull.size(); ++k) {
    steps.push_back({tensor, hull[k], t.choices[hull[k]].bytes - t.choices[hull[k - 1]].bytes,
                     cost(t, hull[k - 1]) - cost(t, hull[k])});
  }
  return steps;
}

// The relaxed problem of tensors [first, end), in which the last step may be taken in part.
class RelaxedBits {
 public:
  RelaxedBits(std::span<const TensorBits> tensors, size_t first) {
    std::vector<Step> steps;
    for (size_t i = first; i < tensors.size(); ++i) {
      const size_t least = undominated(tensors[i]).front();
      least_bytes_ += tensors[i].choices[least].bytes;
      most_error_ += cost(tensors[i], least);
      const auto own = hull_steps(tensors[i], i);
      steps.insert(steps.end(), own.begin(), own.end());
    }
    std::ranges::sort(steps, [](const Step& a, const Step& b) { return a.rate() > b.rate(); });
    bytes_.push_back(0);
    gain_.push_back(0);
    for (const Step& s : steps) {
      bytes_.push_back(bytes_.back() + s.bytes);
      gain_.push_back(gain_.back() + s.gain);
    }
  }
  int64_t least_bytes() const { return least_bytes_; }
  // A lower bound of the error in `budget` bytes, which are at least least_bytes().
  double bound(int64_t budget) const {
    const int64_t left = budget - least_bytes_;
    const auto after = std::ranges::upper_bound(bytes_, left);
    const auto k = static_cast<size_t>(after - bytes_.begin()) - 1;
    double gain = gain_[k];
    if (after != bytes_.end()) {
      gain += (gain_[k + 1] - gain_[k]) * static_cast<double>(left - bytes_[k]) /
              static_cast<double>(bytes_[k + 1] - bytes_[k]);
    }
    return most_error_ - gain;
  }

 private:
  int64_t least_bytes_ = 0;
  double most_error_ = 0;
  std::vector<int64_t> bytes_;
  std::vector<double> gain_;
};

BitAllocation allocation_of(std::span<const TensorBits> tensors, std::vector<size_t> chosen) {
  BitAllocation a{.chosen = std::move(chosen)};
  for (size_t i = 0; i < tensors.size(); ++i) {
    a.bytes += tensors[i].choices[a.chosen[i]].bytes;
    a.error += cost(tensors[i], a.chosen[i]);
  }
  return a;
}

void check(std::span<const TensorBits> tensors, int64_t budget) {
  int64_t least = 0;
  for (const TensorBits& t : tensors) {
    COMPACT_CHECK(!t.choices.empty(), "[bits] `", t.name, "` has no choices");
    COMPACT_CHECK(t.sensitivity >= 0 && std::isfinite(t.sensitivity), "[bits] sensitivity of `",
                  t.name, "` must not be negative, is ", t.sensitivity);
    least += t.choices[undominated(t).front()].bytes;
  }
  COMPACT_CHECK(least <= budget, "[bits] the fewest bits take ", least, " bytes, the budget is ",
                budget);
}

// From the fewest bytes up, always the step that takes off the most error a byte (GACT's way):
// within one step of the optimum of the relaxed problem.
BitAllocation allocate_greedy(std::span<const TensorBits> tensors, int64_t budget) {
  check(tensors, budget);
  std::vector<size_t> chosen;
  std::vector<Step> steps;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    chosen.push_back(undominated(tensors[i]).front());
    bytes += tensors[i].choices[chosen[i]].bytes;
    const auto own = hull_steps(tensors[i], i);
    steps.insert(steps.end(), own.begin(), own.end());
  }
  // Rates fall along a hull, so that a stable order takes each tensor's steps one after the other.
  std::ranges::stable_sort(steps, [](const Step& a, const Step& b) { return a.rate() > b.rate(); });
  std::vector<bool> stopped(tensors.size(), false);
  for (const Step& s : steps) {
    if (stopped[s.tensor]) continue;
    if (bytes + s.bytes > budget) {
      stopped[s.tensor] = true;  // smaller tensors may still step
      continue;
    }
    bytes += s.bytes;
    chosen[s.tensor] = s.to;
  }
  return allocation_of(tensors, std::move(chosen));
}

}  // namespace

double uniform_error(double bits, bool zero_code) {
  const double top = std::exp2(bits) - (zero_code ? 2 : 1);
  return 1 / (top * top);
}

BitAllocation allocate_exact(std::span<const TensorBits> tensors, int64_t budget) {
  const BitAllocation greedy = allocate_greedy(tensors, budget);
  struct State {
    int64_t bytes;
    double error;
    size_t before, choice;  // state of the tensors before, and the choice of this one
  };
  std::vector<std::vector<State>> all = {{{0, 0, 0, 0}}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    const RelaxedBits rest(tensors, i + 1);
    const std::vector<size_t> choices = undominated(tensors[i]);
    std::vector<State> next;
    for (size_t b = 0; b < all.back().size(); ++b) {
      const State& s = all.back()[b];
      for (const size_t c : choices) {
        const int64_t bytes = s.bytes + tensors[i].choices[c].bytes;
        const double error = s.error + cost(tensors[i], c);
        if (bytes + rest.least_bytes() > budget) continue;
        // It cannot beat the best known answer. Rounding must not lose the optimum.
        if (error + rest.bound(budget - bytes) > greedy.error * (1 + 1e-12)) continue;
        next.push_back({bytes, error, b, c});
      }
    }
    std::ranges::sort(next, [](const State& a, const State& b) {
      return std::pair(a.bytes, a.error) < std::pair(b.bytes, b.error);
    });
    std::vector<State> kept;
    for (const State& s : next) {
      if (kept.empty() || s.error < kept.back().error) kept.push_back(s);
    }
    if (kept.empty()) return greedy;  // only by rounding
    all.push_back(std::move(kept));
  }
  size_t at = all.back().size() - 1;  // the most bytes, the least error
  std::vector<size_t> chosen(tensors.size());
  for (size_t i = tensors.size(); i-- > 0;) {
    const State& s = all[i + 1][at];
    chosen[i] = s.choice;
    at = s.before;
  }
  BitAllocation best = allocation_of(tensors, std::move(chosen));
  return best.error < greedy.error ? best : greedy;
}

}  // namespace compact
