// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "compact/base/check.h"
#include "compact/cli/command_help.h"
#include "compact/cli/flags.h"
#include "compact/cli/list.h"
#include "compact/config/exit_codes.h"

namespace compact::cli {

int run_docs(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact docs", command.summary);
  if (!flags.parse(arguments)) return kExitOk;
  std::string overview, sections;
  for (const Command& c : commands()) {
    const std::string name = cat("compact ", c.name);
    overview += cat("| [", name, "](#compact-", c.name, ") | ", c.summary, " |\n");
    sections += "\n" + help_of(c, "markdown");
  }
  std::cout << "# Commands\n\nMade by `compact docs` from the program's own tables.\n\n"
               "| command | what it does |\n|---|---|\n"
            << overview << sections << "\n# What is known by name\n";
  for (const ListKind& kind : list_kinds()) {
    std::cout << "\n## " << kind.name << "\n\n| name | what it is |\n|---|---|\n";
    for (const auto& [name, summary] : kind.rows()) {
      std::string cell;  // in code nothing but the table's own mark is escaped
      for (const char c : name) cell += c == '|' ? "\\|" : std::string(1, c);
      std::cout << "| `" << cell << "` | " << in_table(summary) << " |\n";
    }
  }
  return kExitOk;
}

}  // namespace compact::cli
