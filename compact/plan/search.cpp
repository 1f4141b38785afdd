// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

constexpr int64_t kBudgets = 128;  // of a level on CUDA

}  // namespace

BudgetSearch::BudgetSearch(std::unique_ptr<StepSource> source, Allowed allowed, Speed speed)
    : source_(std::move(source)),
      allowed_(allowed),
      speed_(std::move(speed)),
      groups_(source_->groups(Policy::parse("slot * = keep\n", "auto"))),
      variants_(groups_, source_->step, source_->moments, allowed, source_->chunks,
                source_->places_weights) {
  COMPACT_CHECK(!groups_.segments().empty(), "[plan] the network has no segments to choose for");
  COMPACT_CHECK(speed_.segments.size() == groups_.samples().size(), "[plan] speeds of ",
                speed_.segments.size(), " kinds of segments, the network has ",
                groups_.samples().size());
  for (const SegmentInfo& s : groups_.segments()) {
    names_.push_back(s.name);
    with_matrices_ += !s.matrices.empty();
  }
}

StepPlan BudgetSearch::plan(const std::string& lines, std::vector<Operation>* operations) {
  return source_->plan(Policy::parse(lines, "auto"), operations);
}

int64_t BudgetSearch::chunk_cost(int64_t chunk) const {
  return std::llround(variants_.chunk_seconds(chunk, speed_.bytes_per_second) * 1e9);
}

double BudgetSearch::error_cost() {
  if (!error_cost_) {
    const StepMemory memory = plan(variants_.lines({.chunk = variants_.chunks().front()})).memory;
    error_cost_ = step_seconds(groups_, source_->step, speed_, memory) * 1e9 /
                  static_cast<double>(std::max<int64_t>(with_matrices_, 1));
  }
  return *error_cost_;
}

const SegmentGroups& BudgetSearch::groups(double rank) {
  if (rank == 0) return groups_;
  const auto known = projected_.find(rank);
  if (known != projected_.end()) return known->second;
  const std::string lines = variants_.lines({.rank = rank, .projected = variants_.projectable()});
  const auto made = projected_.emplace(rank, source_->groups(Policy::parse(lines, "auto"))).first;
  COMPACT_CHECK(made->second.samples().size() == groups_.samples().size(),
                "[plan] projected gradients make other kinds of segments");
  return made->second;
}

const std::vector<SegmentOption>& BudgetSearch::options(size_t group, double rank, bool round) {
  const auto known = options_.find({group, rank, round});
  if (known != options_.end()) return known->second;
  const SegmentGroups& with = groups(rank);
  prepare_meta(source_->device);  // another search may have been for another device
  const SegmentInfo& info = *std::ranges::find(with.segments(), group, &SegmentInfo::group);
  const OptionSettings settings{.info = info,
                                .sample = with.samples()[group],
                                .seconds = speed_.segments[group],
                                .bytes_per_second = speed_.bytes_per_second,
                                .micro = static_cast<double>(source_->step.accumulation)};
  std::vector<SegmentOption> made;
  if (!round) {
    made = exact_options(settings);
  } else if (info.matrices.empty()) {
    // No slot is read for the gradient of a matrix, by which errors are measured.
    made = options(group, rank, false);
  } else {
    made = rounded_options(settings, options(group, rank, false), error_cost());
  }
  return options_[{group, rank, round}] = std::move(made);
}

const std::vector<SegmentOption>& BudgetSearch::options_of(size_t segment, const Variant& v) {
  const bool projected = v.projected > 0 && variants_.projects(v, segment);
  return options(groups_.segments()[segment].group, projected ? v.rank : 0, v.round);
}

const LayerProblem& BudgetSearch::problem(const Variant& v) {
  const std::string lines = variants_.lines(v), key = lines + (v.round ? "q" : "");
  const auto known = problems_.find(key);
  if (known != problems_.end()) return known->second;
  std::vector<const std::vector<SegmentOption>*> options;
  std::vector<const SegmentOption*> first;
  for (size_t i = 0; i < names_.size(); ++i) {
    options.push_back(&options_of(i, v));
    first.push_back(&options.back()->front());
  }
  first = one_way(names_, std::move(first));
  const StepMemory memory = plan(lines + slot_lines(names_, first)).memory;
  return problems_[key] = segment_problem(memory, names_, options);
}

// Over the chunks of the loss; ties go to the smaller peak. Sizes that cut it change only its own
// memory: where that does not decide, smaller ones are not planned.
std::optional<BudgetSearch::Candidate> BudgetSearch::best_chunk(Variant v, int64_t budget) {
  std::optional<Candidate> best;
  LayerProblem without_loss;  // of the size before, where it cuts
  for (const int64_t chunk : variants_.chunks()) {
    v.chunk = chunk;
    const int64_t most = best ? best->cost - chunk_cost(chunk) : kAnyCost;
    if (!without_loss.options.empty() && !solvable(without_loss, budget, most)) break;
    const LayerProblem& p = problem(v);
    if (variants_.cuts(chunk)) {
      without_loss = p;
      without_loss.top_base = 0;
    }
    const std::optional<LayerSolution> solution = solve(p, budget, most);
    if (!solution) continue;
    const int64_t cost = solution->cost + chunk_cost(chunk);
    if (best &&
        (cost > best->cost || (cost == best->cost && solution->peak >= best->solution.peak)))
      continue;
    best = Candidate{.variant = v, .solution = *solution, .cost = cost};
  }
  if (!best) return best;
  best->nanoseconds = chunk_cost(best->variant.chunk);
  for (size_t i = 0; i < names_.size(); ++i) {
    best->options.push_back(&options_of(i, best->variant)[best->solution.choice[i]]);
  }
  best->options = one_way(names_, std::move(best->options));
  for (const SegmentOption* option : best->options) best->nanoseconds += option->nanoseconds;
  best->text = variants_.lines(best->variant) + slot_lines(names_, best->options);
  return best;
}

// The best candidate, with as few projected segments as fit.
std::optional<BudgetSearch::Candidate> BudgetSearch::best(const Variant& level, int64_t budget) {
  Variant v = level;
  if (v.rank > 0) {
    v.projected = variants_.projectable();
    if (!fits_one(v, budget)) return std::nullopt;
    int64_t low = 1;
    while (low < v.projected) {
      Variant fewer = v;
      fewer.projected = (low + v.projected) / 2;
      if (fits_one(fewer, budget)) {
        v = fewer;
      } else {
        low = fewer.projected + 1;
      }
    }
  }
  return best_chunk(v, budget);
}

bool BudgetSearch::fits_one(Variant v, int64_t budget) {
  for (const int64_t chunk : variants_.least_chunks()) {
    v.chunk = chunk;
    if (fits(problem(v), budget)) return true;
  }
  return false;
}

int64_t BudgetSearch::least_predicted(Variant v) {
  if (v.rank > 0) v.projected = variants_.projectable();
  int64_t least = kAnyCost;
  for (const int64_t chunk : variants_.least_chunks()) {
    v.chunk = chunk;
    least = std::min(least, ::compact::least_peak(problem(v)));
  }
  return least;
}

BudgetSearch::Level& BudgetSearch::level(size_t number) {
  const auto known = levels_.find(number);
  if (known != levels_.end()) return known->second;
  const Variant& variant = variants_.levels()[number];
  return levels_.emplace(number, Level{.variant = variant, .least = least_predicted(variant)})
      .first->second;
}

std::optional<BudgetSearch::Candidate> BudgetSearch::below(Level& l, int64_t bytes) {
  if (bytes < l.least) return std::nullopt;
  if (bytes == l.least) return best(l.variant, bytes);
  if (!l.cheapest) l.cheapest = best(l.variant, kAnyCost);
  const int64_t most = l.cheapest->solution.peak;
  if (bytes >= most) return l.cheapest;
  // Between budgets that the solver is asked for.
  const int64_t distance =
      source_->device == c10::kCUDA ? std::max<int64_t>(1, (most - l.least) / kBudgets) : 1;
  const int64_t steps = (most - bytes + distance - 1) / distance;
  return best(l.variant, std::max(l.least, most - steps * distance));
}

const Chosen& BudgetSearch::planned(const Candidate& c) {
  const auto known = planned_.find(c.text);
  if (known != planned_.end()) return known->second;
  Chosen chosen;
  chosen.policy = Policy::parse(c.text, "auto");
  std::vector<Operation> operations;
  chosen.plan = plan(c.text, speed_.gpu ? &operations : nullptr);
  for (const SegmentOption* option : c.options) {
    chosen.error += option->error;
    chosen.added_products += option->products;
  }
  chosen.error /= static_cast<double>(std::max<int64_t>(with_matrices_, 1));
  chosen.error += variants_.projection_error(chosen.policy);
  chosen.lossless = c.variant.moments.empty() && chosen.error == 0;
  chosen.states = c.solution.states;
  // Every candidate pays what the loss costs with its largest chunk.
  const int64_t usual = chunk_cost(variants_.chunks().front());
  chosen.added_seconds = static_cast<double>(c.nanoseconds - usual) * 1e-9;
  chosen.seconds = speed_.gpu ? step_time(operations, *speed_.gpu).total().seconds
                              : step_seconds(groups_, source_->step, speed_, chosen.plan.memory) +
                                    chosen.added_seconds;
  return planned_.emplace(c.text, std::move(chosen)).first->second;
}

// From the cheapest policy on, so that the first that fits is the best of all. Where a plan takes
// less than the solver predicts, a budget can lie between the two; the policy of the least peak
// then meets it.
Chosen BudgetSearch::choose(int64_t budget, const std::function<std::string()>& ways) {
  COMPACT_CHECK(budget > 0, "--budget must be positive, is ", budget, " B");
  if (auto found = find(budget)) return std::move(*found);
  const int64_t least = least_peak();
  const std::string other = ways ? ways() : "";
  throw BudgetError(cat("--budget ", format_bytes(budget), " (", format_count(budget),
                        " B) cannot be met: the least peak of what is allowed is ",
                        format_bytes(least), " (", format_count(least), " B)",
                        other.empty() ? "; none of the milder settings reaches it"
                                      : cat("; it would fit with ", other)),
                    least);
}

std::optional<Chosen> BudgetSearch::find(int64_t budget) {
  for (size_t i = 0; i < variants_.levels().size(); ++i) {
    Level& l = level(i);
    const Chosen* found = nullptr;
    auto candidate = below(l, budget);
    while (candidate && !found) {
      const Chosen& chosen = planned(*candidate);
      if (chosen.plan.reserved <= budget) found = &chosen;
      if (chosen.plan.whole > budget) break;  // which no treatment of slots changes
      candidate = below(l, candidate->solution.peak - 1);
    }
    if (i == 0) found = better_preset(found, budget);
    if (found) return *found;
  }
  for (const Chosen& preset : presets(/*lossless=*/false)) {
    if (preset.plan.reserved <= budget) return preset;
  }
  return budget >= least_peak() ? std::optional(*least_) : std::nullopt;
}

// One of the last levels takes the least, as a rule; of the others only what could take less is
// planned.
int64_t BudgetSearch::least_peak() {
  if (least_) return least_->plan.reserved;
  int64_t peak = std::numeric_limits<int64_t>::max();
  const auto consider = [&](const Candidate& candidate) {
    const Chosen& chosen = planned(candidate);
    if (chosen.plan.reserved >= peak) return;
    peak = chosen.plan.reserved;
    least_ = &chosen;
  };
  for (size_t i = variants_.levels().size(); i-- > 0;) {
    Level& l = level(i);
    if (l.least >= peak) continue;
    const auto least = below(l, l.least);
    COMPACT_CHECK(least, "[plan] no policy of level ", i, " takes the ", l.least,
                  " bytes that its least was found to be");
    consider(*least);
    auto candidate = below(l, peak - 1);
    while (candidate) {
      consider(*candidate);
      if (planned(*candidate).plan.whole == peak) break;
      candidate = below(l, candidate->solution.peak - 1);
    }
  }
  for (const bool lossless : {true, false}) {
    for (const Chosen& other : presets(lossless)) {
      if (other.plan.reserved >= peak) continue;
      peak = other.plan.reserved;
      least_ = &other;
    }
  }
  return peak;
}

}  // namespace compact
