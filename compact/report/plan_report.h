// SPDX-License-Identifier: Apache-2.0
// What a planned, or measured, step takes: as text and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "compact/plan/request.h"

namespace compact {

// Weights, gradients, optimizer, projections, and the peak by its parts, with the moment it is at.
std::string plan_table(const StepPlan& plan, c10::DeviceType device);

// The same of a step that ran beside what was planned, and the difference; then, where it is known,
// what the whole process had in memory at most.
std::string measured_table(const StepMemory& planned, const StepMemory& measured,
                           std::optional<int64_t> resident);

// Keys: weights_bytes, gradients_bytes, optimizer_bytes, projections_bytes, other_bytes,
// saved_bytes, held_bytes, workspace_bytes (at the peak), peak_bytes, peak_at, at_peak, moments,
// slots; on CUDA reserved_bytes, host_bytes (offloaded), host_pinned_bytes (as rounded up).
nlohmann::ordered_json plan_json(const StepPlan& plan, c10::DeviceType device);

}  // namespace compact
