// SPDX-License-Identifier: Apache-2.0
// How long the steps of segments and the products of a loss in chunks take: measured on this
// machine, or from stated figures of another device.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/plan/gpu_card.h"
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

// Rates that training reaches on a GPU; `tf32`: products in f32 take that path.
GpuRates reached_rates(const GpuCard& card, bool tf32);

// From floating-point operations and bytes a second. Throws InputError where one is not positive.
Speed stated_speed(const SegmentGroups& groups, double products_per_second,
                   double bytes_per_second);

// Measurements on this machine.
struct MeasuredSteps {
  // Seconds of each step of each group: of one sample of at most kTimedTokens tokens, or of the
  // maps of two.
  std::vector<std::vector<double>> segments;
  double products = 0;  // of the head, operations a second; 0: no head
  double bytes = 0;     // of a copy, a second, read and written
};
inline constexpr int64_t kTimedTokens = 1024;
// An earlier measurement under this key, if usable, or a new one by `measure`.
using RememberSteps = FunctionRef<MeasuredSteps(const std::string& key,
                                                FunctionRef<bool(const MeasuredSteps&)> usable,
                                                FunctionRef<MeasuredSteps()> measure)>;
// Bytes a second of a copy on the CPU, read and written.
double copied_bytes();

// Operations a second of a product of [rows, inner] and [inner, out] in this type: measured, once
// in a process, with sizes cut to a thousand, from which on it no longer depends on them.
double product_rate(int64_t rows, int64_t inner, int64_t out, at::ScalarType type);

// Seconds of each step of a forward pass of a sample on the meta device, as this machine's CPU
// takes them, from a part of it: one sample, of at most kTimedTokens tokens, or the maps of two; no
// product of matrices of a full size. `part` is what was measured of that part, `whole` the same
// for all of it.
struct SampleSeconds {
  std::vector<double> part, whole;
};
SampleSeconds sample_seconds(const SegmentSample& sample, std::span<const Work> work,
                             const std::vector<double>* part = nullptr);

// `key` says all that the figures depend on beside threads and how products in bf16 are made.
Speed measured_speed(const SegmentGroups& groups, const std::string& key, RememberSteps remember);

// Seconds of a whole step that rebuilds nothing, on any device: forward and twice as much
// backward of all segments, three products of the head, one pass over weights, gradients and
// moments.
double step_seconds(const SegmentGroups& groups, const StepShape& step, const Speed& speed,
                    const StepMemory& memory);

}  // namespace compact
