// SPDX-License-Identifier: Apache-2.0
// The search behind a budget for language models, whose blocks are alike and planned once.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compact/plan/budget_search.h"
#include "compact/plan/transformer_options.h"

namespace compact {

// Remembers what it has planned.
class TransformerSearch final : public BudgetSearch {
 public:
  TransformerSearch(PlanRequest request, Allowed allowed, Speed speed)
      : BudgetSearch(request.device),
        r_(std::move(request)),
        allowed_(allowed),
        speed_(std::move(speed)),
        layers_(r_.shape.num_hidden_layers) {}

 private:
  // Then more and more of the gradient in a random projection.
  std::vector<Variant> levels() const override;
  std::optional<Candidate> best(const Variant& level, int64_t budget) override;
  int64_t least_predicted(const Variant& level) override;
  double error(const Candidate& candidate) const override;
  StepPlan plan(const Policy& policy) const override;
  double step_seconds(const StepMemory& memory) const override;
  // What the loss costs where memory is no matter.
  int64_t usual_cost() const override { return chunk_cost(chunks().front()); }

  std::vector<int64_t> chunks() const;
  std::string lines(const Variant& v) const;
  std::string release_line() const { return r_.step.may_release() ? kReleaseLine : ""; }
  const std::vector<BlockOption>& options(const Variant& v, bool projected);
  // Nanoseconds that an error of 1 in one layer is worth.
  double error_cost();
  const LayerProblem& problem(const Variant& v);
  std::vector<const std::vector<BlockOption>*> layer_options(const Variant& v);
  std::optional<Candidate> best_of(Variant v, int64_t budget);
  bool fits_one(Variant v, int64_t budget);
  int64_t chunk_cost(int64_t chunk) const;

  PlanRequest r_;
  Allowed allowed_;
  Speed speed_;
  int64_t layers_;
  std::optional<double> error_cost_;
  std::map<std::pair<double, bool>, std::vector<BlockOption>> options_;  // by rank and quantize
  std::map<std::string, LayerProblem> problems_;
};

}  // namespace compact
