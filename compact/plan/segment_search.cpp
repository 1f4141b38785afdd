// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/segment_search.h"

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/plan/bits.h"

namespace compact {
namespace {

Policy policy_of(const std::string& text) { return Policy::parse(text, "auto"); }

}  // namespace

SegmentSearch::SegmentSearch(const Step& step, Allowed allowed, Speed speed)
    : BudgetSearch(step(Policy()).device),
      step_(step),
      allowed_(allowed),
      speed_(std::move(speed)) {
  const StepRequest request = step_(policy_of("slot * = keep\n"));
  shape_ = request.step;
  const auto work = forward_work(request);
  const std::unique_ptr<Network> network = request.network(at::kMeta);
  for (const Segment* s : network->segments()) {
    Part& part = parts_.emplace_back(Part{.name = s->name(), .work = work[parts_.size()]});
    const size_t skip = s->name().size() + 1;
    for (const SlotUse& use : s->uses()) {
      if (use.signs) {
        signs_ += cat("slot ", use.name, " = mask:of=sign\n");
        continue;
      }
      part.held.push_back(use.name.substr(skip));
      if (use.rebuilt) part.rebuilt.push_back(use.name.substr(skip));
    }
  }
  COMPACT_CHECK(!parts_.empty(), "[plan] the network has no segments to choose for");
  COMPACT_CHECK(speed_.segments.size() == parts_.size(), "[plan] speeds of ",
                speed_.segments.size(), " segments, the network has ", parts_.size());
  find_exact();
}

std::string SegmentSearch::lines(const Variant& v) const {
  std::string text = "slot * = keep\n" + signs_;
  if (!v.moments.empty()) text += cat("moment * = ", v.moments, "\n");
  if (shape_.may_release()) text += kReleaseLine;
  return text;
}

void SegmentSearch::plan_options(std::vector<BlockOption*> options) const {
  std::vector<std::string> names;
  for (const Part& part : parts_) names.push_back(part.name);
  const StepRequest request =
      step_(policy_of(lines({}) + slot_lines(names, {options.begin(), options.end()})));
  const StepMemory memory = plan_step(request).memory;
  const std::unique_ptr<Network> network = request.network(at::kMeta);
  const std::vector<const Segment*> segments = network->segments();
  const auto micro = static_cast<double>(shape_.accumulation);
  int64_t before = memory.fixed();
  for (size_t i = 0; i < parts_.size(); ++i) {
    BlockOption& o = *options[i];
    const std::string& name = parts_[i].name;
    const double encoded = add_slots(o, memory.slots, name + ".");
    const Rebuilding again = rebuilding(*segments[i], speed_.segments[i], parts_[i].work);
    const double seconds = 2 * encoded / speed_.bytes_per_second + again.seconds;
    o.products = again.products * micro;
    o.nanoseconds = o.bytes.cost = std::llround(seconds * micro * 1e9);
    o.bytes.forward = memory.at_moment("forward of " + name) - before;
    o.bytes.backward = std::max(memory.at_moment("backward of " + name),
                                memory.at_moment("backward before " + name)) -
                       before;
    before += o.bytes.saved;
  }
}

void SegmentSearch::plan_all(std::vector<std::vector<BlockOption>>& options) const {
  size_t most = 0;
  for (const auto& of : options) most = std::max(most, of.size());
  for (size_t round = 0; round < most; ++round) {
    std::vector<BlockOption> spare(parts_.size());
    std::vector<BlockOption*> now;
    for (size_t i = 0; i < parts_.size(); ++i) {
      now.push_back(round < options[i].size() ? &options[i][round] : &spare[i]);
    }
    plan_options(now);
  }
}

void SegmentSearch::find_exact() {
  std::vector<std::vector<BlockOption>> options;
  for (const Part& part : parts_) options.push_back(recompute_options(part.rebuilt));
  plan_all(options);
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i].exact = undominated(options[i]);
}

// Of the exact ones what comes of holding all that is kept in fewer bits.
void SegmentSearch::find_quantized() {
  if (!parts_[0].all.empty()) return;
  std::vector<std::vector<BlockOption>> options;
  for (const Part& part : parts_) {
    auto& of = options.emplace_back();
    for (const BlockOption& exact : part.exact) {
      for (const int bits : kSlotBits) {
        BlockOption option{.recomputed = exact.recomputed};
        for (const std::string& slot : part.held) {
          if (std::ranges::find(exact.recomputed, slot) != exact.recomputed.end()) continue;
          option.quantized.emplace_back(slot, bits);
        }
        if (!option.quantized.empty()) of.push_back(std::move(option));
      }
    }
  }
  plan_all(options);
  const double whole = step_seconds(plan(policy_of(lines({}))).memory) * 1e9;
  const double error_cost = whole / static_cast<double>(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    for (BlockOption& o : options[i]) o.bytes.cost += std::llround(o.error * error_cost);
    options[i].insert(options[i].begin(), parts_[i].exact.begin(), parts_[i].exact.end());
    parts_[i].all = undominated(options[i]);
  }
}

double SegmentSearch::step_seconds(const StepMemory& memory) const {
  double forward = 0;
  for (const auto& segment : speed_.segments) {
    for (const double s : segment) forward += s;
  }
  return 3 * forward * static_cast<double>(shape_.accumulation) +
         update_seconds(memory, speed_.bytes_per_second);
}

std::vector<Variant> SegmentSearch::levels() const {
  return lossy_levels(step_(policy_of("")).optimizer, allowed_);
}

// Options are counted from what lives before a step; bases come from one plan of the variant.
const LayerProblem& SegmentSearch::problem(const Variant& v) {
  if (v.quantize) find_quantized();
  const std::string key = lines(v) + (v.quantize ? "q" : "");
  const auto found = problems_.find(key);
  if (found != problems_.end()) return found->second;
  LayerProblem p;
  const StepMemory memory = plan(policy_of(lines(v))).memory;
  int64_t saved = 0;  // by what keeps everything
  for (const Part& part : parts_) {
    BlockOption kept;
    add_slots(kept, memory.slots, part.name + ".");
    saved += kept.bytes.saved;
    auto& options = p.options.emplace_back();
    for (const BlockOption& o : v.quantize ? part.all : part.exact) options.push_back(o.bytes);
    p.forward_base.push_back(memory.fixed());
    p.backward_base.push_back(memory.fixed());
    p.after_base.push_back(memory.fixed());  // it is in the options
  }
  for (const auto& [moment, bytes] : memory.moments) {
    if (moment == "loss" || moment == "backward") {
      p.top_base = std::max(p.top_base, bytes - saved);
    } else if (moment.find(" of ") == std::string::npos &&
               moment.find(" before ") == std::string::npos) {
      p.rest = std::max(p.rest, bytes);
    }
  }
  return problems_[key] = std::move(p);
}

Candidate SegmentSearch::candidate(const Variant& v, const LayerSolution& solution) const {
  Candidate c{.variant = v, .solution = solution, .cost = solution.cost};
  std::vector<std::string> names;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto& options = v.quantize ? parts_[i].all : parts_[i].exact;
    c.layers.push_back(&options[solution.choice[i]]);
    c.nanoseconds += c.layers.back()->nanoseconds;
    names.push_back(parts_[i].name);
  }
  c.text = lines(v) + slot_lines(names, c.layers);
  return c;
}

std::optional<Candidate> SegmentSearch::best(const Variant& level, int64_t budget) {
  const std::optional<LayerSolution> solution = solve(problem(level), budget);
  if (!solution) return std::nullopt;
  return candidate(level, *solution);
}

int64_t SegmentSearch::least_predicted(const Variant& level) {
  return ::compact::least_peak(problem(level));
}

double SegmentSearch::error(const Candidate& candidate) const {
  double sum = 0;
  for (const BlockOption* part : candidate.layers) sum += part->error;
  return sum / static_cast<double>(parts_.size());
}

}  // namespace compact
