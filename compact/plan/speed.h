// SPDX-License-Identifier: Apache-2.0
// How long the steps of segments and the products of a loss in chunks take: measured on this
// machine, or from stated figures of another device.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/plan/groups.h"
#include "compact/plan/step_time.h"

namespace compact {

struct Speed {
  std::string source;  // what the figures come from
  // Seconds of each step of the forward pass of each group of segments, one micro-batch.
  std::vector<std::vector<double>> segments;
  double head = 0;              // seconds of the forward product of a loss in chunks
  double bytes_per_second = 0;  // of a copy, read and written
  std::optional<GpuRates> gpu;  // where given, steps are timed by their operations
};

// From floating-point operations and bytes a second. Throws InputError where one is not positive.
Speed stated_speed(const SegmentGroups& groups, double products_per_second,
                   double bytes_per_second);

// What is timed in place of a network: one that has a segment of each of its groups, in the same
// order, run forward on the CPU.
struct TimedNetwork {
  StepRequest request;  // of a micro-batch that is quickly run
  double scale = 1;     // samples of the network's own micro-batch in one of `request`
  std::string key;      // says all that the figures depend on beside threads
};
// What was measured on a TimedNetwork.
struct MeasuredSteps {
  std::vector<std::vector<double>> segments;  // seconds of each step of each group
  double products = 0;                        // of the head, operations a second; 0: no head
  double bytes = 0;                           // of a copy, a second, read and written
};
// What was measured under a key before, where it is usable, or what `measure` gives.
using RememberSteps = FunctionRef<MeasuredSteps(const std::string& key,
                                                FunctionRef<bool(const MeasuredSteps&)> usable,
                                                FunctionRef<MeasuredSteps()> measure)>;
// Bytes a second of a copy on the CPU, read and written.
double copied_bytes();

Speed measured_speed(const SegmentGroups& groups, const TimedNetwork& timed,
                     RememberSteps remember);

// Seconds of a whole step that rebuilds nothing, whatever the device: forward and twice as much
// backward of all segments, three products of the head, one pass over weights, gradients and
// moments.
double step_seconds(const SegmentGroups& groups, const StepShape& step, const Speed& speed,
                    const StepMemory& memory);

}  // namespace compact
