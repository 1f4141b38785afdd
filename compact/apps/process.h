// SPDX-License-Identifier: Apache-2.0
// Runs a program as a child process.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace compact {

// The path by which this program was started.
std::string own_program();

// To be called first in a program that may be such a child: SIGTERM then ends it when the process
// that started it ends, however that ends.
void end_with_parent();

struct ProcessResult {
  int exit_code = 0;                // of the child, or 128 + the signal that ended it
  int signal = 0;                   // SIGINT or SIGTERM that this process got meanwhile, or 0
  std::vector<std::string> errors;  // the last lines that it wrote to standard error
};

// Runs `arguments` (the first is the program's path) to its end. It has this process's standard
// input and output (`silent`: no output); each line of its standard error goes to `on_error`.
// SIGTERM, and SIGINT from a process (Ctrl-C reaches the child by itself), are passed on to the
// child, not obeyed here. Throws InputError where the program cannot be started.
ProcessResult run_process(const std::vector<std::string>& arguments,
                          const std::function<void(const std::string&)>& on_error,
                          bool silent = false);

}  // namespace compact
