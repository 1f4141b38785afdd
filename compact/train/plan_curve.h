// SPDX-License-Identifier: Apache-2.0
// What memory buys: predicted step time against peak, and the largest batch that fits.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compact/train/planning.h"

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
// worth keeping; the same where lossy treatments stand in for it below; and presets.
PlanCurve plan_curve(const TrainConfig& config, const Task& task, c10::DeviceType device,
                     const StatedSpeed& stated);

// Atomically. The page needs nothing beside it.
void write_curve_page(const PlanCurve& curve, const std::string& path);

// The largest micro-batch whose peak stays under --budget, with the policy or, under
// --preset auto, with any that is allowed. Throws InputError without a budget, BudgetError where
// not even one sequence fits.
struct MaxBatch {
  int64_t batch = 0;
  std::string text;
};
MaxBatch largest_batch(const TrainConfig& config, const Task& task, const Policy& policy,
                       c10::DeviceType device, const StatedSpeed& stated);

}  // namespace compact
