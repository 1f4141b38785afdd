// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <iostream>

#include "compact/cli/commands.h"
#include "compact/cli/planning_line.h"
#include "compact/cli/train_flags.h"
#include "compact/config/exit_codes.h"
#include "compact/train/trainer.h"

namespace compact::cli {

int run_train(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact train", command.summary);
  TrainFlags settings(flags, Commands::kTrain);
  if (!flags.parse(arguments)) return kExitOk;
  const TrainConfig config = settings.config(flags);
  if (settings.print_config()) {
    std::cout << config_toml(config);
    return kExitOk;
  }
  const TrainHooks hooks{.place = place_of_process(),
                         .planning = [&] { return std::make_shared<PlanningLine>(config); }};
  return train(config, std::cout, isatty(STDOUT_FILENO) != 0, hooks);
}

}  // namespace compact::cli
