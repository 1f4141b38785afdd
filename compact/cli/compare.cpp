// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/compare.h"

#include <iostream>

#include "compact/apps/compare_entry.h"
#include "compact/cli/commands.h"
#include "compact/cli/train_flags.h"
#include "compact/config/exit_codes.h"
#include "compact/tasks/task.h"

namespace compact::cli {

int run_compare(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact compare", command.summary);
  std::string presets;
  flags.group("Comparison");
  flags.add("presets", presets,
            "the runs: each a preset or a policy file, before it NAME= where it is to have another "
            "name, after it flags for this run alone (--budget 50%: half of the first run's peak); "
            "quotes keep spaces and commas together: "
            "\"off,half=auto --budget 50%,muon=compact --optim muon\"; default: off,exact,compact, "
            "for images, graphs and adapters off,exact,gact-l1",
            "A,B,...");
  CompareOptions options;
  flags.add("timing_rounds", options.timing_rounds,
            "rounds in which step times are measured after training, some steps of each run in "
            "turn; 0: as they trained, one after the other");
  TrainFlags settings(flags, Commands::kCompare);
  if (!flags.parse(arguments)) return kExitOk;
  options.config = settings.config(flags);
  if (settings.print_config()) {
    std::cout << config_toml(options.config);
    return kExitOk;
  }
  if (presets.empty()) {
    presets =
        options.config.use_peft ? "off,exact,gact-l1" : task_named(options.config.task).compared;
  }
  options.presets = compare_texts(presets);
  options.train_arguments = flags.given({"presets", "timing_rounds", "print_config", "output_dir"});
  return compare(options, std::cout, std::cerr);
}

}  // namespace compact::cli
