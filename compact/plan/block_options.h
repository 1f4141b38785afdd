// SPDX-License-Identifier: Apache-2.0
// The ways to treat a block: every assignment of keep and recompute to its slots, with exact bytes
// and the seconds of what is rebuilt.
#pragma once

#include <string>
#include <vector>

#include "compact/plan/request.h"
#include "compact/plan/solve.h"
#include "compact/plan/speed.h"

namespace compact {

struct BlockOption {
  std::vector<std::string> recomputed;  // slots, without the layer: attn.norm
  LayerOption bytes;                    // cost in nanoseconds of a step
  double products = 0;                  // operations of matrix products run again, in a step
};

// Pareto-optimal options of a block under the request's step, with policy lines that hold for all
// of its layers (gradients). Bytes come from steps of a model of two such
// blocks on the meta device; `forward` and `backward` count from a common level that
// layer_problem takes out again.
std::vector<BlockOption> block_options(const PlanRequest& request, const std::string& lines,
                                       const Speed& speed);

// "slot layers.{0,2}.attn.norm = recompute" lines for a choice of every layer.
std::string slot_lines(const std::vector<const BlockOption*>& layers);

// The problem of choosing for every layer, whose options are given; `fixed_lines` hold beside the
// slots. Bases come from one step of the whole model on the meta device.
LayerProblem layer_problem(const PlanRequest& request, const std::string& fixed_lines,
                           const std::vector<const std::vector<BlockOption>*>& layers);

}  // namespace compact
