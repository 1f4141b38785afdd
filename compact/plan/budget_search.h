// SPDX-License-Identifier: Apache-2.0
// The search behind a budget: which variants of a model there are, the mildest first, and for each
// the best treatment of every segment: the least predicted time, where codecs may be taken together
// with what their error is worth: an error of 1 everywhere costs as much as one whole predicted
// step.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compact/plan/block_option.h"
#include "compact/plan/budget.h"

namespace compact {

// What holds for the whole model beside the slots of its segments.
struct Variant {
  std::string moments;    // type of all moments; empty: as asked for
  bool quantize = false;  // what segments keep may be held in fewer bits
  double rank = 0;        // of projected gradients; 0: none
  int64_t projected = 0;  // layers, the last ones: their gradients come first
  int64_t chunk = 0;      // tokens of the loss at a time
};

struct Candidate {
  Variant variant;
  LayerSolution solution;
  std::vector<const BlockOption*> layers;
  std::string text;
  int64_t cost = 0;         // of the layers and the loss
  int64_t nanoseconds = 0;  // of it: the rest is what errors are worth
};

// Remembers what it has planned. Which policies there are to choose from depends on the model and
// the step alone, never on the budget: of every level the solver's answers to budgets between the
// least peak and that of the least cost, on the CPU to all of them, on CUDA to 128 at equal
// distances, since what the caching allocator reserves is known only from the plan of a whole step.
// Of those whose plan fits, the one of the least cost is taken. So a smaller budget never has a
// higher peak, a larger one never a slower policy.
class BudgetSearch {
 public:
  explicit BudgetSearch(c10::DeviceType device) : device_(device) {}
  virtual ~BudgetSearch() = default;

  // With the plan of the whole step; nullopt where nothing fits.
  std::optional<Chosen> find(int64_t budget);
  // The smallest peak of all there are, which are planned as a whole: the least budget of `find`.
  int64_t least_peak();

 private:
  struct Level {
    Variant variant;
    Candidate cheapest;    // under any budget
    int64_t least = 0;     // predicted peak
    int64_t distance = 1;  // of budgets that the solver is asked for
  };

  // Ways to lose nothing, then precision, then more and more of the gradient.
  virtual std::vector<Variant> levels() const = 0;
  // The best of a level under the budget, by the solver's own prediction of the peak. Budgets of
  // the same cost and peak have the same one.
  virtual std::optional<Candidate> best(const Variant& level, int64_t budget) = 0;
  // The smallest peak that it predicts of a level.
  virtual int64_t least_predicted(const Variant& level) = 0;
  // Mean E|g' - g|^2 / |g|^2 of the gradients: rounding, the mean over segments, and projection.
  virtual double error(const Candidate& candidate) const = 0;
  // A whole step under a policy; seconds of one that rebuilds nothing.
  virtual StepPlan plan(const Policy& policy) const = 0;
  virtual double step_seconds(const StepMemory& memory) const = 0;
  // Nanoseconds that every candidate pays.
  virtual int64_t usual_cost() const { return 0; }

  size_t level_count();
  const Level& level(size_t number);
  // The cheapest of a level whose predicted peak is at most so many bytes.
  std::optional<Candidate> below(const Level& level, int64_t bytes);
  const Chosen& planned(const Candidate& candidate);
  // What a plan holds beside the tensors whose peak the solver predicts.
  int64_t beside() const;

  c10::DeviceType device_;
  std::vector<Variant> variants_;
  std::map<size_t, Level> levels_;
  std::map<std::string, Chosen> planned_;  // by the policy's text
  const Chosen* least_ = nullptr;          // what takes least of them, once it is known
};

// As asked for; then what may be held in fewer bits: moments, and what segments keep.
std::vector<Variant> lossy_levels(const OptimizerOptions& optimizer, Allowed allowed);

// Updating inside the backward pass costs nothing and loses nothing where it may be done.
inline constexpr const char* kReleaseLine = "grad * = full:release=true\n";

}  // namespace compact
