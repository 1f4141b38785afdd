// SPDX-License-Identifier: Apache-2.0
// The search for a policy under a budget. For every variant of a network, the mildest first, it
// finds the treatment of each segment that costs least: predicted time and, where codecs may be
// used, the price of their error. An error of 1 everywhere costs as much as one whole predicted
// step. What a segment takes under one of its options is found by running it alone, once for all
// that are alike; what is beside the segments comes from one plan of the whole step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "compact/plan/options.h"
#include "compact/plan/speed.h"
#include "compact/plan/step_source.h"
#include "compact/plan/variant.h"

namespace compact {

struct Chosen {
  Policy policy;
  StepPlan plan;
  double seconds = 0;         // predicted, of a step
  double added_seconds = 0;   // of it for rebuilding, and for what codecs read and write
  double added_products = 0;  // operations of matrix products, beside a step that rebuilds nothing
  double error = 0;           // mean E|g' - g|^2 / |g|^2 of the segments' matrices' gradients; of
                              // rounded tensors the part of their square, segments alike
  bool lossless = true;
  int64_t states = 0;  // of the search, which is exact
  std::string speed;   // of a CPU, in the words of a run: what `seconds` come from
};

// No policy fits. `peak`: what a step would take; after a search the least that any policy would
// take.
struct BudgetError : std::runtime_error {
  BudgetError(const std::string& message, int64_t peak) : std::runtime_error(message), peak(peak) {}
  int64_t peak;
};

// Remembers what it has planned. The policies to choose from depend on the network and the step
// alone, never on the budget: for every level, the solver's answers to budgets between the least
// peak and the peak of the least cost. On the CPU these are all such budgets, on CUDA 128 at equal
// distances, since what the caching allocator reserves is known only from the plan of a whole step.
// The cheapest one whose plan fits is taken, or a preset without loss where that is better; where
// none fits, a preset that loses what is allowed. So a smaller budget never has a higher peak, and
// on the CPU a larger one never a slower policy; where plans take less than the solver predicts,
// this holds for policies that it predicts to fit. On CUDA the solver's costs order the policies,
// and `Chosen::seconds`, counted from all operations of the chosen step, may rise by some percent
// with the budget.
class BudgetSearch {
 public:
  // Throws InputError on a step without segments, on speeds of other segments, and where gradients
  // may be projected and none can be.
  BudgetSearch(std::unique_ptr<StepSource> source, Allowed allowed, Speed speed);
  using Step = NetworkSteps::Step;
  BudgetSearch(Step step, Allowed allowed, Speed speed)
      : BudgetSearch(std::make_unique<NetworkSteps>(std::move(step)), allowed, std::move(speed)) {}
  BudgetSearch(const BudgetSearch&) = delete;

  // The least predicted time among lossless policies under the budget (bytes of tensors on the CPU,
  // of reserved memory on CUDA); only where none fits, the allowed lossy ones, level by level, then
  // presets. nullopt where nothing fits.
  std::optional<Chosen> find(int64_t budget);
  // The same; throws BudgetError, which names what `ways` gives: settings that would fit. Throws
  // InputError on a budget that is not positive.
  Chosen choose(int64_t budget, const std::function<std::string()>& ways = {});
  // The smallest peak of all there are, which are planned as a whole: the least budget of `find`.
  int64_t least_peak();

 private:
  struct Candidate {
    Variant variant;
    LayerSolution solution;
    std::vector<const SegmentOption*> options;  // of every segment
    std::string text;
    int64_t cost = 0;         // of the segments and the loss
    int64_t nanoseconds = 0;  // of it: the rest is what errors are worth
  };
  struct Level {
    Variant variant;
    int64_t least = 0;                  // predicted peak
    std::optional<Candidate> cheapest;  // under any budget, once it is asked for
  };

  Level& level(size_t number);
  // The best of a level under the budget, by the solver's own prediction of the peak. Budgets of
  // the same cost and peak have the same one.
  std::optional<Candidate> best(const Variant& level, int64_t budget);
  std::optional<Candidate> best_chunk(Variant v, int64_t budget);
  bool fits_one(Variant v, int64_t budget);
  int64_t least_predicted(Variant v);
  // The cheapest of a level whose predicted peak is at most so many bytes.
  std::optional<Candidate> below(Level& level, int64_t bytes);
  const Chosen& planned(const Candidate& candidate);
  Chosen planned_preset(const std::string& name);
  // The presets for this network, unchanged: those without loss, or the others whose loss is
  // allowed, the least first.
  const std::vector<Chosen>& presets(bool lossless);
  // The faster one of `found` (null: none) and of those that fit, where these can be better.
  const Chosen* better_preset(const Chosen* found, int64_t budget);

  // Options of a group of segments, by whether and how their gradients are projected.
  const std::vector<SegmentOption>& options(size_t group, double rank, bool round);
  const std::vector<SegmentOption>& options_of(size_t segment, const Variant& v);
  // Segments and samples with all gradients projected to a rank.
  const SegmentGroups& groups(double rank);
  const LayerProblem& problem(const Variant& v);
  StepPlan plan(const std::string& lines, std::vector<Operation>* operations = nullptr);
  int64_t chunk_cost(int64_t chunk) const;
  // Nanoseconds that an error of 1 in one segment is worth.
  double error_cost();

  std::unique_ptr<StepSource> source_;
  Allowed allowed_;
  Speed speed_;
  SegmentGroups groups_;
  Variants variants_;
  std::vector<std::string> names_;  // of segments
  int64_t with_matrices_ = 0;       // segments
  std::optional<double> error_cost_;
  std::map<double, SegmentGroups> projected_;
  struct OptionKey {
    size_t group;
    double rank;
    bool round;
    auto operator<=>(const OptionKey&) const = default;
  };
  std::map<OptionKey, std::vector<SegmentOption>> options_;
  std::map<std::string, LayerProblem> problems_;
  std::map<size_t, Level> levels_;
  std::map<std::string, Chosen> planned_;          // by the policy's text
  std::optional<std::vector<Chosen>> presets_[2];  // with loss, and without
  const Chosen* least_ = nullptr;                  // what takes least of them, once it is known
};

}  // namespace compact
