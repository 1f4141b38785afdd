// SPDX-License-Identifier: Apache-2.0
// The commands of the program.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace compact::cli {

struct Command {
  const char* name;
  const char* summary;
  // Runs it on its arguments (without program and command); returns an ExitCode or throws.
  int (*run)(const Command& command, const std::vector<std::string>& arguments);
};
std::span<const Command> commands();

int run_train(const Command& command, const std::vector<std::string>& arguments);
int run_eval(const Command& command, const std::vector<std::string>& arguments);
int run_generate(const Command& command, const std::vector<std::string>& arguments);
int run_prepare(const Command& command, const std::vector<std::string>& arguments);
int run_compare(const Command& command, const std::vector<std::string>& arguments);
int run_plan(const Command& command, const std::vector<std::string>& arguments);
int run_visualize(const Command& command, const std::vector<std::string>& arguments);
int run_list(const Command& command, const std::vector<std::string>& arguments);
int run_doctor(const Command& command, const std::vector<std::string>& arguments);
int run_docs(const Command& command, const std::vector<std::string>& arguments);
int run_completion(const Command& command, const std::vector<std::string>& arguments);

// The whole program: finds the command, turns exceptions into one line on standard error and an
// ExitCode. `commit`: of the sources it was built from; empty: it is not known.
int run_program(const std::vector<std::string>& arguments, const std::string& commit = {});

}  // namespace compact::cli
