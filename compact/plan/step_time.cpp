// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/step_time.h"

#include <algorithm>

namespace compact {
namespace {

enum Part { kProducts, kOtherLayers, kCodecs, kLoss, kOptimizer };

Part part_of(const Operation& o) {
  const Phase phase = o.moment.phase;
  if (phase == Phase::kGradientNorm || phase == Phase::kOptimizer) return kOptimizer;
  if (is_of_loss(o)) return kLoss;
  if (o.codec) return kCodecs;
  return o.products > 0 ? kProducts : kOtherLayers;
}

double seconds_of(const Operation& o, const GpuRates& rates) {
  if (o.host) return o.bytes / rates.host;
  const bool half = o.type == at::kBFloat16 || o.type == at::kHalf;
  return std::max(o.products / (half ? rates.half : rates.single), o.bytes / rates.bytes);
}

void add(TimePart& sum, double products, double bytes, double seconds) {
  sum.products += products;
  sum.bytes += bytes;
  sum.seconds += seconds;
}

}  // namespace

bool is_of_loss(const Operation& o) {
  return o.moment.phase == Phase::kLoss || o.moment == StepMoment{Phase::kBackwardOf, "loss"};
}

TimePart StepTime::total() const {
  TimePart sum{"step", ""};
  for (const TimePart& p : parts) add(sum, p.products, p.bytes, p.seconds);
  return sum;
}

StepTime step_time(std::span<const Operation> operations, const GpuRates& rates) {
  StepTime time;
  for (const Operation& o : operations) {
    add(time.parts[part_of(o)], o.products, o.bytes, seconds_of(o, rates));
  }
  return time;
}

}  // namespace compact
