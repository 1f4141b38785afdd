// SPDX-License-Identifier: Apache-2.0
#include "compact/optim/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/named.h"

namespace compact {
namespace {

const ScheduleInfo cosine = {
    .name = "cosine",
    .summary = "half a cosine",
    .shape = [](double p) { return 0.5 * (1 + std::cos(std::numbers::pi * p)); },
};
const ScheduleInfo linear = {
    .name = "linear",
    .summary = "a straight line",
    .shape = [](double p) { return 1 - p; },
};
const ScheduleInfo constant = {
    .name = "constant",
    .summary = "no decay",
    .shape = [](double) { return 1.0; },
};
constexpr double kDecayShare = 0.2;
const ScheduleInfo wsd = {
    .name = "wsd",
    .summary = "no decay, then a straight line over the last fifth",
    .shape = [](double p) { return std::min(1.0, (1 - p) / kDecayShare); },
};
const ScheduleInfo step = {
    .name = "step",
    .summary = "a tenth after half of the updates, a hundredth after three quarters",
    .shape = [](double p) { return p < 0.5    ? 1
                                   : p < 0.75 ? 0.1
                                   : p < 1    ? 0.01
                                              : 0; },
};

}  // namespace

std::span<const ScheduleInfo* const> schedules() {
  static const ScheduleInfo* const all[] = {&cosine, &linear, &constant, &wsd, &step};
  return all;
}

Schedule::Schedule(std::string_view name, int64_t total, double warmup, double min_ratio)
    : info_(&named(schedules(), name, "[schedule] unknown type")),
      total_(total),
      warmup_(0),
      min_ratio_(min_ratio) {
  COMPACT_CHECK(total >= 1, "[schedule] needs at least 1 update, has ", total);
  COMPACT_CHECK(warmup >= 0 && warmup <= static_cast<double>(total),
                "[schedule] warm-up must be from 0 to the ", total, " updates, is ", warmup);
  COMPACT_CHECK(warmup < 1 || warmup == std::floor(warmup),
                "[schedule] warm-up must be a fraction below 1 or a whole number, is ", warmup);
  COMPACT_CHECK(min_ratio >= 0 && min_ratio <= 1, "[schedule] min_lr_ratio must be in [0, 1], is ",
                min_ratio);
  warmup_ = std::llround(warmup < 1 ? warmup * static_cast<double>(total) : warmup);
}

double Schedule::factor(int64_t step) const {
  if (step < warmup_) return static_cast<double>(step + 1) / static_cast<double>(warmup_);
  if (step >= total_) return info_->shape(1) * (1 - min_ratio_) + min_ratio_;
  const double progress =
      static_cast<double>(step - warmup_) / static_cast<double>(total_ - warmup_);
  return min_ratio_ + (1 - min_ratio_) * info_->shape(progress);
}

}  // namespace compact
