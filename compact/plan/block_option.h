// SPDX-License-Identifier: Apache-2.0
// One way to treat a block, or any segment: which slots are rebuilt and which are held in fewer
// bits, with exact bytes, seconds and the error.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compact/ops/segment.h"
#include "compact/plan/solve.h"

namespace compact {

// Slots without the name of the segment: attn.norm.
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

// Every assignment of keep and recompute to these slots, nothing filled in.
std::vector<BlockOption> recompute_options(const std::vector<std::string>& slots);

// For a choice of every one of `names` "slot layers.{0,2}.* = quantize:bits=4", then
// "slot layers.1.mlp.gate_up = quantize:bits=8" and "slot layers.{0,2}.attn.norm = recompute"
// lines. Names are joined where they differ in their last part only.
std::string slot_lines(const std::vector<std::string>& names,
                       const std::vector<const BlockOption*>& options);
// The bits that codecs are chosen from.
inline constexpr int kSlotBits[] = {8, 4, 2};

// Fills in what the slots whose names begin with `prefix` keep, and the option's error. Returns the
// bytes that codecs read and write to encode them once.
double add_slots(BlockOption& option, const std::vector<SlotBytes>& slots,
                 const std::string& prefix);

// Without those that another one beats or equals in bytes and cost.
std::vector<BlockOption> undominated(const std::vector<BlockOption>& all);

}  // namespace compact
