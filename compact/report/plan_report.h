// SPDX-License-Identifier: Apache-2.0
// Memory and time of a planned or measured step, as text and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "compact/plan/launches.h"
#include "compact/plan/request.h"
#include "compact/plan/step_time.h"

namespace compact {

// Weights, gradients, optimizer, projections, and the peak by its parts, with its moment.
std::string plan_table(const StepPlan& plan, c10::DeviceType device);

// The predicted time of a step on a GPU, by its parts.
std::string time_table(const StepTime& time, const GpuRates& rates);

// A measured step beside the plan, and the difference; then, where known, the peak of the whole
// process.
std::string measured_table(const StepMemory& planned, const StepMemory& measured,
                           std::optional<int64_t> resident);

// Keys: weights_bytes, gradients_bytes, optimizer_bytes, projections_bytes, other_bytes,
// saved_bytes, held_bytes, workspace_bytes (at the peak), peak_bytes, peak_at, at_peak, moments,
// slots; on CUDA reserved_bytes, host_bytes (offloaded), host_pinned_bytes (as rounded up).
nlohmann::ordered_json plan_json(const StepPlan& plan, c10::DeviceType device);

// Keys: total, parts (of each its number), host_waits.
nlohmann::ordered_json launches_json(const StepLaunches& launches);

// Keys: speed, seconds, parts: of each its name, flops, bytes, seconds.
nlohmann::ordered_json time_json(const StepTime& time, const GpuRates& rates);

}  // namespace compact
