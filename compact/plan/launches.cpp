// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/launches.h"

#include <algorithm>
#include <numeric>

#include "compact/base/text.h"
#include "compact/plan/step_time.h"

namespace compact {
namespace {

constexpr const char* kParts[] = {"forward", "loss", "backward", "gradient norm",
                                  "adamw",   "fold", "optimizer"};

// Empty: no part of the step.
std::string_view part_name(const Operation& o) {
  const Phase phase = o.moment.phase;
  if (o.name.starts_with("adamw")) return "adamw";
  if (o.name.starts_with("fold")) return "fold";
  if (phase == Phase::kStart || phase == Phase::kBatch) return "";
  if (is_of_loss(o)) return "loss";
  if (phase == Phase::kForward || phase == Phase::kForwardOf) return "forward";
  if (phase == Phase::kGradientNorm) return "gradient norm";
  return phase == Phase::kOptimizer ? "optimizer" : "backward";
}

}  // namespace

int64_t StepLaunches::total() const {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t sum, const auto& part) { return sum + part.second; });
}

StepLaunches launches_of(std::span<const Operation> operations) {
  StepLaunches all;
  for (const char* part : kParts) {
    int64_t launches = 0;
    for (const Operation& o : operations) {
      if (part_name(o) == part) launches += o.launches;
    }
    if (launches > 0) all.parts.emplace_back(part, launches);
  }
  return all;
}

std::string str(const StepLaunches& launches) {
  std::string text = "launches " + format_count(launches.total());
  const char* between = ": ";
  for (const auto& [part, count] : launches.parts) {
    text += between + part + " " + format_count(count);
    between = ", ";
  }
  return text + "; the host waits for a step once, one step late";
}

}  // namespace compact
