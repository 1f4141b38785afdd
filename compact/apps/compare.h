// SPDX-License-Identifier: Apache-2.0
// The same training run under several presets, side by side: `compact compare`.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "compact/config/config.h"

namespace compact {

struct CompareOptions {
  std::vector<std::string> presets;  // one run each, in the form of compare_entry()
  TrainConfig config;                // what they share
  // Arguments of `compact train` that give `config`, without --preset and --output_dir.
  std::vector<std::string> train_arguments;
  std::string program;        // the program that runs `train`; empty: this one
  int64_t timing_rounds = 3;  // each measures the step times of all runs in turn; 0: none
};

// Runs each preset in a process of its own, one after the other, in output_dir/NAME, measures their
// step times in rounds, and writes output_dir/compare.json and compare.html. Runs that fail are
// reported and the others go on; Ctrl-C and SIGTERM stop the current run and end the comparison.
// Returns the exit code of the first run that failed, or 0. Of a run that ended before it used its
// folder only the failure is reported; where no run began, both files stay as they are. Throws
// InputError, before anything runs, on unknown presets and on settings that no run could have.
int compare(const CompareOptions& options, std::ostream& console, std::ostream& errors);

}  // namespace compact
