// SPDX-License-Identifier: Apache-2.0
// The same training run under several presets, side by side: `compact compare`.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "compact/config/config.h"

namespace compact {

struct CompareOptions {
  std::vector<std::string> presets;  // one run each, as compare_entry takes them
  TrainConfig config;                // what they share
  // Arguments of `compact train` that give `config`, without --preset and --output_dir.
  std::vector<std::string> train_arguments;
  std::string program;        // what runs `train`; empty: the program that is running
  int64_t timing_rounds = 3;  // each measures the step times of all runs in turn; 0: none
};

// Runs each preset in a process of its own, one after the other, in output_dir/NAME, measures their
// step times in turn, and writes output_dir/compare.json and compare.html. Runs that fail are
// reported and the others go on; Ctrl-C and SIGTERM end the comparison after the run that they
// stop. Returns the exit code of the first run that failed, or 0. A run that ended before it took
// its folder is reported as failed and no more; where no run began both files stay as they are.
// Throws InputError, before anything runs, on unknown presets and on settings that no run could
// have.
int compare(const CompareOptions& options, std::ostream& console, std::ostream& errors);

}  // namespace compact
