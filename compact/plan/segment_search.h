// SPDX-License-Identifier: Apache-2.0
// The search behind a budget for networks whose segments are all different, as residual ones. One
// plan of the whole step tells what every segment takes under one of its options, so that as many
// plans are made as the segment of most options has.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "compact/plan/block_option.h"
#include "compact/plan/budget_search.h"

namespace compact {

class SegmentSearch final : public BudgetSearch {
 public:
  using Step = std::function<StepRequest(const Policy&)>;
  // `step`: of a policy. Throws InputError on a network without segments.
  SegmentSearch(const Step& step, Allowed allowed, Speed speed);

 private:
  struct Part {
    std::string name;                        // of the segment
    std::vector<std::string> rebuilt, held;  // slots that may be rebuilt; that codecs may hold
    std::vector<Work> work;                  // of its steps, one micro-batch
    std::vector<BlockOption> exact, all;     // all: with codecs
  };

  std::vector<Variant> levels() const override;
  std::optional<Candidate> best(const Variant& level, int64_t budget) override;
  int64_t least_predicted(const Variant& level) override;
  double error(const Candidate& candidate) const override;
  StepPlan plan(const Policy& policy) const override { return plan_step(step_(policy)); }
  double step_seconds(const StepMemory& memory) const override;

  // Lines that stand below those of the segments.
  std::string lines(const Variant& v) const;
  // Plans a step with an option for every part, and fills them in.
  void plan_options(std::vector<BlockOption*> options) const;
  // Plans as many steps as it takes to see all options, which become the undominated ones.
  void plan_all(std::vector<std::vector<BlockOption>>& options) const;
  void find_exact();
  void find_quantized();
  const LayerProblem& problem(const Variant& v);
  Candidate candidate(const Variant& v, const LayerSolution& solution) const;

  Step step_;
  Allowed allowed_;
  Speed speed_;
  StepShape shape_;
  std::string signs_;  // lines of slots of which only signs are read
  std::vector<Part> parts_;
  std::map<std::string, LayerProblem> problems_;
};

}  // namespace compact
