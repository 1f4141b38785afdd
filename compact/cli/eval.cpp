// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/cli/commands.h"
#include "compact/cli/train_flags.h"
#include "compact/config/exit_codes.h"
#include "compact/data/files/printable.h"
#include "compact/io/json_file.h"
#include "compact/tasks/evaluate.h"

namespace compact::cli {

int run_eval(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact eval", command.summary);
  TrainConfig c;
  c.max_eval_samples = 0;
  c.task.clear();
  std::string json;
  add_options(flags, Commands::kEval, c);
  flags.group("Output");
  flags.add_output("json", json, "write the figures here, too");
  if (!flags.parse(arguments)) return kExitOk;
  flags.apply();
  Console console(std::cout, isatty(STDOUT_FILENO) != 0);
  const auto [results, unit, warnings] = evaluate(c, &console);
  console.stream() << std::flush;  // without the bar
  for (const std::string& line : warnings) std::cerr << "warning: " << line << "\n";
  nlohmann::ordered_json figures;
  for (const auto& [prefix, result] : results) {
    for (const auto& [name, value] : eval_row(prefix, result)) {
      std::cout << name << " " << value << "\n";
      figures[name] = number_or_null(value);
    }
    if (const auto named = f1_class(prefix, result)) {
      std::cout << named->first << " " << printable(named->second) << "\n";
      figures[named->first] = named->second;
    }
    const std::string counted = cat(prefix, "_", unit);
    std::cout << counted << " " << format_count(result.targets) << "\n";
    figures[counted] = result.targets;
  }
  if (!json.empty()) write_json(json, figures);
  return kExitOk;
}

}  // namespace compact::cli
