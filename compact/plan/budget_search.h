// SPDX-License-Identifier: Apache-2.0
// The search behind a budget: which variants of a model there are, the mildest first, and for each
// the best treatment of every layer.
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
  std::string codec;      // of what blocks keep; empty: as it is
  double rank = 0;        // of projected gradients; 0: none
  int64_t projected = 0;  // layers, the last ones: their gradients come first
  int64_t chunk = 0;      // tokens of the loss at a time
};

struct Candidate {
  Variant variant;
  LayerSolution solution;
  std::vector<const BlockOption*> layers;
  std::string text;
  int64_t cost = 0;
};

// What a budget bounds: bytes of tensors on the CPU, of reserved memory on CUDA.
int64_t bounded_bytes(const StepPlan& plan, const PlanRequest& request);

// Remembers what it has planned. The request and the speed must outlive it.
class BudgetSearch {
 public:
  BudgetSearch(const PlanRequest& request, Allowed allowed, const Speed& speed)
      : r_(request), allowed_(allowed), speed_(speed), layers_(r_.shape.num_hidden_layers) {}

  // The best under the budget, by the solver's own prediction of the peak.
  std::optional<Candidate> best(int64_t budget);
  // The smallest peak of all variants.
  int64_t least();
  double error(const Variant& v) const;
  // What the loss costs where memory is no matter.
  int64_t usual_cost() const { return chunk_cost(chunks().front()); }

 private:
  std::vector<Variant> levels() const;
  std::vector<int64_t> chunks() const;
  std::string lines(const Variant& v) const;
  // Updating inside the backward pass costs nothing and loses nothing where it may be done.
  bool release() const { return !r_.step.clip && r_.step.accumulation == 1; }
  std::string release_line() const { return release() ? "grad * = full:release=true\n" : ""; }
  const std::vector<BlockOption>& options(const Variant& v, bool projected);
  const LayerProblem& problem(const Variant& v);
  std::vector<const std::vector<BlockOption>*> layer_options(const Variant& v);
  std::optional<Candidate> best_of(Variant v, int64_t budget);
  int64_t chunk_cost(int64_t chunk) const;

  const PlanRequest& r_;
  Allowed allowed_;
  const Speed& speed_;
  int64_t layers_;
  std::map<std::pair<double, std::string>, std::vector<BlockOption>> options_;
  std::map<std::string, LayerProblem> problems_;
};

}  // namespace compact
