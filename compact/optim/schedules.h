// SPDX-License-Identifier: Apache-2.0
// Learning rate schedules by their Hugging Face names: cosine, linear, constant, wsd (warm-up,
// stable, decay), step (He et al. 2016). All start with a linear warm-up.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace compact {

struct ScheduleInfo {
  std::string name, summary;
  // From the share of updates after the warm-up that are done, in [0, 1), to a factor from 1 to 0.
  double (*shape)(double progress);
};
std::span<const ScheduleInfo* const> schedules();

class Schedule {
 public:
  // `warmup` below 1 is a fraction of `total` updates, a whole number from 1 up is a count. Throws
  // InputError on an unknown name, total < 1, warmup < 0 or > total, min_ratio outside [0, 1].
  Schedule(std::string_view name, int64_t total, double warmup = 0, double min_ratio = 0);

  // The factor of the learning rate of update `step` (from 0): (step + 1) / warmup in the warm-up,
  // so that no update has rate 0; then from 1 towards min_ratio, which update `total` would reach.
  double factor(int64_t step) const;
  int64_t warmup() const { return warmup_; }

 private:
  const ScheduleInfo* info_;
  int64_t total_, warmup_;
  double min_ratio_;
};

}  // namespace compact
