// SPDX-License-Identifier: Apache-2.0
#include "compact/train/run_plan.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <ostream>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/ops/memory/memory.h"
#include "compact/report/plan_report.h"

namespace compact {

RunPlan::RunPlan(const TrainConfig& c, const Task& task, at::Device device, Policy& policy,
                 Origin origin, const Place& place)
    : config_(c),
      task_(task),
      plans_(Plans(c, task, device.type(), place.size).at(place.rank)),
      advises_(origin == Origin::kNew),
      device_(device) {
  const bool is_new = origin == Origin::kNew;
  // plans_.choose() gives one policy for all ranks.
  if (is_new && c.preset == "auto") {
    Chosen chosen = plans_.choose();
    policy = chosen.policy;
    choice_ = choice_lines(chosen);
    plan_ = std::move(chosen.plan);
  } else if (is_new) {
    std::string note;
    plan_ = plans_.within_budget(policy, note);
    if (!note.empty()) choice_.push_back(note);
  } else {
    plan_ = plans_.plan(policy);
  }
  limit_ = device.is_cpu() ? memory_limit(parse_bytes(c.budget).value_or(0), place.neighbours)
                           : MemoryLimit{plans_.budget(), "--budget"};
  plans_.check_fits(policy, plan_, limit_, /*resumed=*/origin == Origin::kResumed, advises_);
  const bool others = origin == Origin::kResumed && plans_.ranks() > 1 && c.zero > 0;
  heaviest_ = others ? plans_.heaviest(policy).rank : plan_.rank;
  if (plan_.rank != place.rank) plan_ = plans_.plan(policy);
  policy_ = policy;
  highest_peak_ = plan_.memory.peak;
}

RunPlan::~RunPlan() { lift(); }

void RunPlan::lift() {
  if (!std::exchange(enforced_, false)) return;
  device_.is_cpu() ? limit_cpu_bytes(std::nullopt) : limit_cuda_bytes(device_, std::nullopt);
}

bool RunPlan::limited() const { return limit_.bytes < std::numeric_limits<int64_t>::max(); }

void RunPlan::enforce(int64_t outside) {
  enforced_ = true;
  std::optional<int64_t> bytes;
  if (limited()) bytes = limit_.bytes;
  if (!device_.is_cpu()) return limit_cuda_bytes(device_, bytes);
  if (bytes) *bytes += outside;
  limit_cpu_bytes(bytes);
}

void RunPlan::begin_record(const Network& network, const Optimizer& optimizer, int64_t outside) {
  if (!device_.is_cpu()) return;
  recorder_.emplace(network, optimizer);
  recorder_->begin(outside);
}

void RunPlan::mark_gradients() {
  if (recorder_) recorder_->mark_gradients();
}

std::string RunPlan::end_record(int64_t step, const PassReport& report, Console& console) {
  if (!recorder_) return "";
  const StepMemory measured = recorder_->finish(report);
  recorder_.reset();
  const int64_t more = measured.peak - plan_.memory.peak;
  console.line(cat("measured peak ", format_bytes(measured.peak), " in step ", step, ": ",
                   more == 0 ? "as planned"
                             : cat(format_count(std::abs(more)), " B ", more > 0 ? "more" : "less",
                                   " than planned",
                                   !task_.lengths_vary  ? ""
                                   : task_.rows.empty() ? " for the longest samples"
                                                        : " for full rows")));
  return cat("\nmemory of step ", step, "\n",
             measured_table(plan_.memory, measured, resident_peak()));
}

std::vector<std::string> RunPlan::lines() const {
  std::vector<std::string> lines = choice_;
  lines.push_back(line());
  return lines;
}

std::string RunPlan::line() const {
  return cat("plan     peak ", format_bytes(plan_.memory.peak), " in ",
             str(plan_.memory.at_peak.moment),
             limited() ? cat("; limit ", format_bytes(limit_.bytes), ", ", limit_.source) : "");
}

std::string RunPlan::table() const { return plan_table(plan_, device_.type()); }

Policy RunPlan::with(const std::string& bits) const {
  Policy policy = policy_;
  policy.append(Policy::parse(bits, "bits"));
  return policy;
}

bool RunPlan::fits(const std::string& bits) const {
  return config_.budget.empty() || plans_.at(heaviest_).plan(with(bits)).reserved <= limit_.bytes;
}

void RunPlan::take(const std::string& bits, bool first) {
  plan_ = plans_.plan(with(bits));
  highest_peak_ = first ? plan_.memory.peak : std::max(highest_peak_, plan_.memory.peak);
}

void RunPlan::explain(Console& console) {
  lift();
  console.line(cat("memory ran out under the limit of ", format_bytes(limit_.bytes), ", ",
                   limit_.source, "; planned was a peak of ", format_bytes(plan_.memory.peak),
                   " in ", str(plan_.memory.at_peak.moment)));
  if (config_.verbose) console.stream() << table();
  if (!advises_) return;
  try {
    const std::string other = plans_.settings_that_fit(policy_, plan_.reserved / 10 * 9);
    if (!other.empty()) console.line("a step would take a tenth less with " + other);
  } catch (const std::exception&) {  // what ran out is said already; nothing may take its place
  }
}

}  // namespace compact
