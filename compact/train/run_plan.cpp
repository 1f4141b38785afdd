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
#include "compact/train/planned_rank.h"

namespace compact {

RunPlan::RunPlan(const TrainConfig& c, const Task& task, at::Device device, Policy& policy,
                 Origin origin)
    : config_(c), most_(c), task_(task), advises_(origin == Origin::kNew), device_(device) {
  // What is chosen is for all ranks.
  const bool is_new = origin == Origin::kNew;
  if (is_new && c.preset == "auto") {
    const Chosen chosen = choose_for_ranks(most_, task, device.type());
    policy = chosen.policy;
    choice_ = choice_lines(chosen);
  } else if (origin != Origin::kOfRank0) {
    most_.planned_rank = heaviest_rank(c, task, policy, device.type());
  }
  std::string note;
  plan_ = is_new ? plan_within(most_, task, policy, device.type(), budget_of(c), note)
                 : plan_step(step_request(c, task, policy, device.type()));
  if (!note.empty()) choice_.push_back(note);
  limit_ = device.is_cpu() ? memory_limit(parse_bytes(c.budget).value_or(0), c.neighbours)
                           : MemoryLimit{budget_of(c), "--budget"};
  check_fits(most_, task, policy, device.type(), plan_, limit_,
             /*resumed=*/origin == Origin::kResumed, advises_);
  if (is_new && most_.planned_rank != c.planned_rank) {
    plan_ = plan_step(step_request(c, task, policy, device.type()));
  }
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
  console.line(
      cat("measured peak ", format_bytes(measured.peak), " in step ", step, ": ",
          more == 0 ? "as planned"
                    : cat(format_count(std::abs(more)), " B ", more > 0 ? "more" : "less",
                          " than planned", task_.lengths_vary ? " for the longest samples" : "")));
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

StepPlan RunPlan::with(const TrainConfig& config, const std::string& bits) const {
  Policy policy = policy_;
  policy.append(Policy::parse(bits, "bits"));
  return plan_step(step_request(config, task_, policy, device_.type()));
}

bool RunPlan::fits(const std::string& bits) const {
  return config_.budget.empty() || with(most_, bits).reserved <= limit_.bytes;
}

void RunPlan::take(const std::string& bits, bool first) {
  plan_ = with(config_, bits);
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
    const std::string other =
        settings_that_fit(config_, task_, policy_, device_.type(), plan_.reserved / 10 * 9);
    if (!other.empty()) console.line("a step would take a tenth less with " + other);
  } catch (const std::exception&) {  // what ran out is said already; nothing may take its place
  }
}

}  // namespace compact
