// SPDX-License-Identifier: Apache-2.0
// The search behind a budget: which variants of a model there are, the mildest first, and for each
// the best treatment of every layer: the least predicted time, where codecs may be taken together
// with what their error is worth: an error of 1 in every layer costs as much as one whole predicted
// step.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compact/plan/block_options.h"
#include "compact/plan/budget.h"

namespace compact {

// What holds for the whole model beside the slots of its blocks.
struct Variant {
  std::string moments;    // type of all moments; empty: as asked for
  bool quantize = false;  // what blocks keep may be held in fewer bits, layer by layer
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

// Remembers what it has planned. The request and the speed must outlive it.
class BudgetSearch {
 public:
  BudgetSearch(const PlanRequest& request, Allowed allowed, const Speed& speed)
      : r_(request), allowed_(allowed), speed_(speed), layers_(r_.shape.num_hidden_layers) {}

  // Ways to lose nothing, then precision, then more and more of the gradient.
  std::vector<Variant> levels() const;
  // The best of a level under the budget, by the solver's own prediction of the peak.
  std::optional<Candidate> best(const Variant& level, int64_t budget);
  // The one of a level whose predicted peak is the smallest.
  Candidate least(const Variant& level);
  // The smallest peak of all levels, planned as a whole.
  int64_t least_peak();
  // Mean E|g' - g|^2 / |g|^2 of the block matrices' gradients: rounding, the mean over layers, and
  // projection.
  double error(const Candidate& c) const;
  // What the loss costs where memory is no matter.
  int64_t usual_cost() const { return chunk_cost(chunks().front()); }

 private:
  std::vector<int64_t> chunks() const;
  std::string lines(const Variant& v) const;
  // Updating inside the backward pass costs nothing and loses nothing where it may be done.
  bool release() const { return !r_.step.clip && r_.step.accumulation == 1; }
  std::string release_line() const { return release() ? "grad * = full:release=true\n" : ""; }
  const std::vector<BlockOption>& options(const Variant& v, bool projected);
  // Nanoseconds that an error of 1 in one layer is worth.
  double error_cost();
  const LayerProblem& problem(const Variant& v);
  std::vector<const std::vector<BlockOption>*> layer_options(const Variant& v);
  std::optional<Candidate> best_of(Variant v, int64_t budget);
  bool fits_one(Variant v, int64_t budget);
  int64_t chunk_cost(int64_t chunk) const;

  const PlanRequest& r_;
  Allowed allowed_;
  const Speed& speed_;
  int64_t layers_;
  std::optional<double> error_cost_;
  std::map<std::pair<double, bool>, std::vector<BlockOption>> options_;  // by rank and quantize
  std::map<std::string, LayerProblem> problems_;
};

}  // namespace compact
