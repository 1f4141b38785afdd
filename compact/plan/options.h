// SPDX-License-Identifier: Apache-2.0
// One way to treat a segment: which slots are rebuilt and which are held in fewer bits, with exact
// bytes, seconds and the error.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compact/plan/groups.h"
#include "compact/plan/solve.h"

namespace compact {

// Slots without the name of the segment: attn.norm.
struct SegmentOption {
  std::vector<std::string> rebuilt;
  std::vector<std::pair<std::string, const CodecChoice*>>
      rounded;                        // kept slots, and what holds them
  const CodecChoice* most = nullptr;  // of most of them where all kept slots are rounded; else null
  LayerOption bytes;                  // cost: nanoseconds of a step, and what the error is worth
  int64_t nanoseconds = 0;            // of the cost
  double products = 0;                // operations of matrix products run again, in a step
  // Mean error of kept tensors: each rounded slot counts by its share of the elements. Tensors
  // rebuilt from them, and gradients made with them, have about the same error.
  double error = 0;
};

// Inputs for planning the options of a segment.
struct OptionSettings {
  const SegmentInfo& info;
  const SegmentSample& sample;         // of `info`, or of one that is alike
  const std::vector<double>& seconds;  // of each of its steps, one micro-batch
  double bytes_per_second = 0;         // that codecs read and write
  double micro = 1;                    // micro-batches in a step
};

// The assignments of keep and recompute to a segment's slots that no other one beats or equals in
// bytes and cost. Bytes of both passes count from a level of the segment's own, the same for all
// its options. Uses the meta device. Throws InputError where more than 12 slots may be rebuilt.
std::vector<SegmentOption> exact_options(const OptionSettings& settings);

// The undominated ones of `exact`, which exact_options made with the same settings, and of these
// with kept slots held in fewer bits: each with all its kept slots; those on the lower convex hull
// of bytes and cost also with any one of them, and with any one of them in more bits than the
// others. An error of 1 costs `error_cost` nanoseconds.
std::vector<SegmentOption> rounded_options(const OptionSettings& settings,
                                           const std::vector<SegmentOption>& exact,
                                           double error_cost);

// Where segments run several times in a step, one of `names` for each call, every call has one
// treatment: that of the call which keeps the least.
std::vector<const SegmentOption*> one_way(const std::vector<std::string>& names,
                                          std::vector<const SegmentOption*> options);
// The part of a step's moments in which a segment runs for the first (0), second, ... time, where
// they tell calls apart: "layers.0", "layers.0 call 2".
std::string call_name(const std::string& segment, size_t call);

// The problem of choosing an option for every segment, given what a step took under the first
// option of each. Options count from levels of their own: what lies between these and the moments
// of a whole step is the same for all of them.
LayerProblem segment_problem(const StepMemory& memory, const std::vector<std::string>& names,
                             const std::vector<const std::vector<SegmentOption>*>& options);

// For a choice of every one of `names` "slot layers.{0,2}.* = quantize:bits=4", then
// "slot layers.1.mlp.gate_up = quantize:bits=8" and "slot layers.{0,2}.attn.norm = recompute"
// lines. Names are joined where they differ in their last part only.
std::string slot_lines(const std::vector<std::string>& names,
                       const std::vector<const SegmentOption*>& options);
// "layers.3", "layers.{0..2,5}", or "layers.*" for all of `all` that begin so; one for each
// beginning.
std::vector<std::string> patterns_of(const std::vector<std::string>& names,
                                     const std::vector<std::string>& all);

// The codes that a segment holds as it is treated: their mean error, as of an option, and bytes
// that codecs read and write in a micro-batch.
struct Rounding {
  double error = 0, bytes = 0;
};
Rounding rounding_of(const SegmentSample& sample);

// The part of a segment that its backward pass runs again, from seconds and work of its steps.
struct Rebuilding {
  double seconds = 0, products = 0;
};
Rebuilding rebuilding(const Segment& segment, const std::vector<double>& seconds,
                      const std::vector<Work>& work);

}  // namespace compact
