// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/launches.h"

#include <algorithm>
#include <numeric>

#include "compact/base/text.h"

namespace compact {
namespace {

constexpr const char* kParts[] = {"forward", "loss", "backward", "gradient norm",
                                  "adamw",   "fold", "optimizer"};

// Null: no part of the step.
const char* part_name(const Operation& o) {
  if (o.name.starts_with("adamw")) return "adamw";
  if (o.name.starts_with("fold")) return "fold";
  switch (o.moment.phase) {
    case Phase::kStart:
    case Phase::kBatch:
      return nullptr;
    case Phase::kForward:
    case Phase::kForwardOf:
      return "forward";
    case Phase::kLoss:
      return "loss";
    case Phase::kBackwardOf:
      return o.moment.part == "loss" ? "loss" : "backward";
    case Phase::kBackward:
    case Phase::kBackwardBefore:
      return "backward";
    case Phase::kGradientNorm:
      return "gradient norm";
    case Phase::kOptimizer:
      return "optimizer";
  }
  return nullptr;
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
      const char* const own = part_name(o);
      if (own && std::string_view(own) == part) launches += o.launches;
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
