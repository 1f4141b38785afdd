// SPDX-License-Identifier: Apache-2.0
// The presets among the policies that a budget may choose.
#include <algorithm>

#include "compact/base/check.h"
#include "compact/plan/search.h"

namespace compact {
namespace {

struct SearchedPreset {
  const char* name;
  Allowed gives_up = {};
};
// Ordered by what they lose, least first. Others start with the bits of one of these, take memory
// of the host, or lose what --allow does not speak of.
constexpr SearchedPreset kPresets[] = {
    {"off"},
    {"exact"},
    {"recompute"},
    {"tiled"},
    {"gact-l1.1", {.quantize = true}},
    {"gact-l1", {.quantize = true}},
    {"gact-l1.2", {.quantize = true}},
    {"compact", {.project = true}},
    {"compact-paper", {.project = true}},
};

}  // namespace

// A preset costs the work that its segments run again, and bytes that codecs read and write.
Chosen BudgetSearch::planned_preset(const std::string& name) {
  Chosen chosen;
  chosen.policy = Policy::preset(name);
  std::vector<Operation> operations;
  chosen.plan = source_->plan(chosen.policy, speed_.gpu ? &operations : nullptr);
  const SegmentGroups with = source_->groups(chosen.policy);
  const auto micro = static_cast<double>(source_->step.accumulation);
  COMPACT_CHECK(with.segments().size() == names_.size(), "[plan] preset ", name,
                " makes a network of other segments");
  std::vector<Rounding> rounding;  // of the samples
  for (const SegmentSample& sample : with.samples()) rounding.push_back(rounding_of(sample));
  for (size_t i = 0; i < names_.size(); ++i) {
    const SegmentInfo& info = with.segments()[i];
    const std::vector<double>& seconds = speed_.segments[groups_.segments()[i].group];
    const Segment& segment = *with.samples()[info.group].segment;
    COMPACT_CHECK(segment.rerun().size() == seconds.size(), "[plan] preset ", name,
                  " makes segments of other steps");
    const Rebuilding again = rebuilding(segment, seconds, info.work);
    const Rounding& rounded = rounding[info.group];
    chosen.added_seconds += (again.seconds + rounded.bytes / speed_.bytes_per_second) * micro;
    chosen.added_products += again.products * micro;
    if (!info.matrices.empty()) chosen.error += rounded.error;
  }
  chosen.error /= static_cast<double>(std::max<int64_t>(with_matrices_, 1));
  chosen.error += variants_.projection_error(chosen.policy);
  chosen.seconds = speed_.gpu ? step_time(operations, *speed_.gpu).total().seconds
                              : step_seconds(groups_, source_->step, speed_, chosen.plan.memory) +
                                    chosen.added_seconds;
  return chosen;
}

const std::vector<Chosen>& BudgetSearch::presets(bool lossless) {
  std::optional<std::vector<Chosen>>& known = presets_[lossless];
  if (known) return *known;
  known.emplace();
  for (const auto& [name, gives_up] : kPresets) {
    if (lossless != (gives_up == Allowed()) || !allowed_.all_of(gives_up)) continue;
    try {
      known->push_back(planned_preset(name));
      known->back().lossless = lossless;
    } catch (const InputError&) {  // it is for networks of another kind
    }
  }
  return *known;
}

// On CUDA a preset may reserve less than what the solver's answers do, which it finds by bytes that
// are allocated.
const Chosen* BudgetSearch::better_preset(const Chosen* found, int64_t budget) {
  if (found && source_->device != c10::kCUDA) return found;
  for (const Chosen& other : presets(/*lossless=*/true)) {
    if (other.plan.reserved > budget) continue;
    if (!found || !found->lossless || other.seconds < found->seconds * (1 - 1e-9)) found = &other;
  }
  return found;
}

}  // namespace compact
