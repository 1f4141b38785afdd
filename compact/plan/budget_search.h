// SPDX-License-Identifier: Apache-2.0
// The search behind a budget: which variants of a model there are, the mildest first, and for each
// the best treatment of every segment: the least predicted time, where codecs may be taken together
// with what their error is worth: an error of 1 everywhere costs as much as one whole predicted
// step.
#pragma once

#include <cstdint>
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

class BudgetSearch {
 public:
  virtual ~BudgetSearch() = default;

  // Ways to lose nothing, then precision, then more and more of the gradient.
  virtual std::vector<Variant> levels() const = 0;
  // The best of a level under the budget, by the solver's own prediction of the peak.
  virtual std::optional<Candidate> best(const Variant& level, int64_t budget) = 0;
  // The one of a level whose predicted peak is the smallest.
  virtual Candidate least(const Variant& level) = 0;
  // Mean E|g' - g|^2 / |g|^2 of the gradients: rounding, the mean over segments, and projection.
  virtual double error(const Candidate& candidate) const = 0;
  // A whole step under a policy; seconds of one that rebuilds nothing.
  virtual StepPlan plan(const Policy& policy) const = 0;
  virtual double step_seconds(const StepMemory& memory) const = 0;
  // Nanoseconds that every candidate pays.
  virtual int64_t usual_cost() const { return 0; }

  // With the plan of the whole step.
  Chosen planned(const Candidate& candidate) const;
  // The smallest peak of all levels, planned as a whole.
  int64_t least_peak();
};

// As asked for; then what may be held in fewer bits: moments, and what segments keep.
std::vector<Variant> lossy_levels(const OptimizerOptions& optimizer, Allowed allowed);

// Updating inside the backward pass costs nothing and loses nothing where it may be done.
inline constexpr const char* kReleaseLine = "grad * = full:release=true\n";

}  // namespace compact
