// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/doctor.h"

#include <iostream>

#include "compact/cli/commands.h"
#include "compact/cli/flags.h"
#include "compact/config/exit_codes.h"

namespace compact::cli {

int run_doctor(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact doctor", command.summary);
  if (!flags.parse(arguments)) {
    std::cout << flags.help();
    return kExitOk;
  }
  return doctor(std::cout) ? kExitOk : kExitInternal;
}

}  // namespace compact::cli
