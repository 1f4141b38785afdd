// SPDX-License-Identifier: Apache-2.0
// Step times of the runs of a comparison, measured in rounds of a few steps of each run, so that a
// slow phase of the machine slows all of them.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "compact/report/run_report.h"

namespace compact {

// Cores of the machine, and how many of them other processes, or other virtual machines (steal),
// used on average.
struct OtherWork {
  double cores = 0, taken = 0;
};

// Seconds of a clock, and seconds of CPU time.
struct CpuTimes {
  double clock = 0;
  double machine = 0;  // of all processes, steal included; below 0 where the system does not tell
  double own = 0;      // of this process and of those it started that have ended
  double cores = 0;
};
CpuTimes cpu_times();
// Other work between two times; zeros where it is unknown.
OtherWork other_work(const CpuTimes& before, const CpuTimes& after);

struct StepRounds {
  int64_t count = 0;  // 0: nothing was measured
  OtherWork other;
  int signal = 0;  // SIGINT or SIGTERM that ended it early, or 0
  // A line on how step times were measured and what other work used, and, if that was more than a
  // twentieth of the cores, one that the machine was busy. Empty where nothing was measured.
  std::string text() const;
};

// Trains `arguments[i]` (of `compact train`, program first, without --output_dir; empty: skipped)
// for some steps, about 1.5 seconds, in each of `count` rounds and appends to `runs[i].rounds`.
// Skips a run without a known step time; reports one that fails in `errors` and does not measure it
// again. Files are written to a folder inside the run's and removed.
StepRounds measure_rounds(int64_t count, const std::vector<std::vector<std::string>>& arguments,
                          std::vector<RunReport>& runs, std::ostream& errors);

}  // namespace compact
