// SPDX-License-Identifier: Apache-2.0
// The ways to treat a transformer block: every assignment of keep and recompute to its slots, and
// of the good ones what comes of holding kept slots in fewer bits.
#pragma once

#include <string>
#include <vector>

#include "compact/plan/block_option.h"
#include "compact/plan/request.h"
#include "compact/plan/solve.h"
#include "compact/plan/speed.h"

namespace compact {

// Pareto-optimal options of a block under the request's step, with policy lines that hold for all
// of its layers (gradients). Bytes come from steps of a model of two such blocks on the meta
// device; `forward` and `backward` count from a common level that layer_problem takes out again.
std::vector<BlockOption> block_options(const PlanRequest& request, const std::string& lines,
                                       const Speed& speed);

// The Pareto-optimal ones of `exact`, which block_options made with the same arguments, and of
// these in 8, 4 and 2 bits: each with all its kept slots; those on the lower convex hull of bytes
// and cost also with any one of them, and with any one of them in more bits than the others. An
// error of 1 costs `error_cost` nanoseconds.
std::vector<BlockOption> quantized_options(const PlanRequest& request, const std::string& lines,
                                           const Speed& speed,
                                           const std::vector<BlockOption>& exact,
                                           double error_cost);

// slot_lines of layers.0, layers.1, ...
std::string slot_lines(const std::vector<const BlockOption*>& layers);

// The problem of choosing for every layer, whose options are given; `fixed_lines` hold beside the
// slots. Bases come from one step of the whole model on the meta device.
LayerProblem layer_problem(const PlanRequest& request, const std::string& fixed_lines,
                           const std::vector<const std::vector<BlockOption>*>& layers);

}  // namespace compact
