// SPDX-License-Identifier: Apache-2.0
// The ways to treat a block: every assignment of keep and recompute to its slots, and of the good
// ones what comes of holding kept slots in fewer bits; with exact bytes and the seconds of what is
// rebuilt, encoded and decoded.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compact/plan/request.h"
#include "compact/plan/solve.h"
#include "compact/plan/speed.h"

namespace compact {

// Slots without the layer: attn.norm.
struct BlockOption {
  std::vector<std::string> recomputed;
  std::vector<std::pair<std::string, int>> quantized;  // kept slots held in that many bits
  int all_bits = 0;         // of most of them where all kept slots are quantized, else 0
  LayerOption bytes;        // cost: nanoseconds of a step, and what the error is worth
  int64_t nanoseconds = 0;  // of the cost
  double products = 0;      // operations of matrix products run again, in a step
  // Of what is kept: the rounding error (see rounding_error) of each quantized slot by its part of
  // the elements. As much is lost by what is rebuilt from it and by the gradients made with it.
  double error = 0;
};

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

// For a choice of every one of `names` "slot layers.{0,2}.* = quantize:bits=4", then
// "slot layers.1.mlp.gate_up = quantize:bits=8" and "slot layers.{0,2}.attn.norm = recompute"
// lines. Names are joined where they differ in their last part only.
std::string slot_lines(const std::vector<std::string>& names,
                       const std::vector<const BlockOption*>& options);
// The same of layers.0, layers.1, ...
std::string slot_lines(const std::vector<const BlockOption*>& layers);

// The bits that codecs are chosen from.
inline constexpr int kSlotBits[] = {8, 4, 2};

// Fills in what the slots whose names begin with `prefix` keep, and the option's error. Returns the
// bytes that codecs read and write to encode them once.
double add_slots(BlockOption& option, const std::vector<SlotBytes>& slots,
                 const std::string& prefix);

// Without those that another one beats or equals in bytes and cost.
std::vector<BlockOption> undominated(const std::vector<BlockOption>& all);

// The problem of choosing for every layer, whose options are given; `fixed_lines` hold beside the
// slots. Bases come from one step of the whole model on the meta device.
LayerProblem layer_problem(const PlanRequest& request, const std::string& fixed_lines,
                           const std::vector<const std::vector<BlockOption>*>& layers);

}  // namespace compact
