// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/merge.h"

#include <iostream>

#include "compact/cli/commands.h"
#include "compact/cli/flags.h"
#include "compact/config/exit_codes.h"

namespace compact::cli {

int run_merge(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact merge", command.summary);
  std::string adapters, base, output;
  flags.group("Folders");
  flags.add("model_name_or_path", adapters, "folder of adapters, from a run or from peft", "DIR");
  flags.add("base_model", base, "folder of their model; default: the one that they name", "DIR");
  flags.add("output_dir", output, "folder to write, which must be new or empty", "DIR");
  if (!flags.parse(arguments)) return kExitOk;
  flags.apply();
  std::vector<std::string> warnings;
  merge(adapters, base, output, warnings);
  for (const std::string& line : warnings) std::cout << "warning: " << line << "\n";
  std::cout << "model in " << output << std::endl;
  return kExitOk;
}

}  // namespace compact::cli
