// SPDX-License-Identifier: Apache-2.0
// The commands of the program.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace compact::cli {

struct Command;
// Runs a command on its arguments (without program and command); returns an ExitCode or throws.
using Run = int(const Command& command, const std::vector<std::string>& arguments);

struct Command {
  const char* name;
  const char* summary;
  Run* run;
};
std::span<const Command> commands();

Run run_train, run_eval, run_generate, run_prepare, run_compare, run_merge, run_plan, run_visualize,
    run_list, run_doctor, run_docs, run_completion;

// The whole program: finds the command, turns exceptions into one line on standard error and an
// ExitCode. `commit`: of the sources it was built from; empty: it is not known.
int run_program(const std::vector<std::string>& arguments, const std::string& commit = {});

}  // namespace compact::cli
