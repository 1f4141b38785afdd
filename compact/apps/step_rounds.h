// SPDX-License-Identifier: Apache-2.0
// Step times of the runs of a comparison, measured in turn: round by round a few steps of each, so
// that what slows the machine down for a while slows all of them down.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "compact/report/run_report.h"

namespace compact {

// Cores of the machine, and how many of them other work took (other processes, and other machines
// on the same hardware: steal), as means over a time.
struct OtherWork {
  double cores = 0, taken = 0;
};

// Seconds that have passed, and of CPU time.
struct CpuTimes {
  double clock = 0;
  double machine = 0;  // of all processes, steal included; below 0 where the system does not tell
  double own = 0;      // of this process and of those it started that have ended
  double cores = 0;
};
CpuTimes cpu_times();
// Between two times; zeros where the system did not tell.
OtherWork other_work(const CpuTimes& before, const CpuTimes& after);

struct StepRounds {
  int64_t count = 0;  // 0: nothing was measured
  OtherWork other;
  int signal = 0;  // SIGINT or SIGTERM that ended it early, or 0
  // A line of what step times are and what other work took meanwhile, and where that was more than
  // a twentieth of the cores one that the machine was busy. Empty where nothing was measured.
  std::string text() const;
};

// Trains `arguments[i]` (of `compact train`, program first, without --output_dir; empty: passed
// over) for some steps, about 1.5 seconds, in each of `count` rounds and appends to
// `runs[i].rounds`. A run of which no step time is known is passed over; one that fails is named in
// `errors` and not measured again. What is written lies in a folder of the run's own and is
// removed.
StepRounds measure_rounds(int64_t count, const std::vector<std::vector<std::string>>& arguments,
                          std::vector<RunReport>& runs, std::ostream& errors);

}  // namespace compact
