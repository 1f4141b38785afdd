// SPDX-License-Identifier: Apache-2.0
// The time that memory saves: predicted step time against peak.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compact/train/plans.h"

namespace compact {

struct CurvePoint {
  std::string name;  // lossless, lossy, or a preset
  int64_t peak = 0;  // bytes
  double seconds = 0, products = 0;
  std::optional<double> error = {};  // of the gradient; none: it is not known
};
struct PlanCurve {
  std::string title, subtitle, text;
  nlohmann::ordered_json json;
  std::vector<CurvePoint> lossless, lossy, presets;
};

// The cheapest lossless policy for budgets from the least peak up to what keeps everything that is
// worth keeping; the same where lossy treatments stand in for it below, but for what a lossless one
// beats in both; and presets.
PlanCurve plan_curve(const Plans& plans);

// Atomically. The page needs nothing beside it.
void write_curve_page(const PlanCurve& curve, const std::string& path);

}  // namespace compact
