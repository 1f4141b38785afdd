// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/prepare.h"

#include <unistd.h>

#include <iostream>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/cli/commands.h"
#include "compact/cli/train_flags.h"
#include "compact/config/exit_codes.h"
#include "compact/report/metrics.h"

namespace compact::cli {

int run_prepare(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact prepare", command.summary);
  std::vector<std::string> input;
  std::string output;
  TrainConfig c;
  c.tokenizer = "bytes";
  PrepareOptions options;
  flags.group("Files");
  flags.add("input", input, "text: .txt, .jsonl, each also .gz, .xz, .zst", "FILE_OR_PATTERN...");
  flags.add("output", output, "token file to write", "PATH");
  flags.add("field", options.field, "field of a .jsonl line that holds the text", "NAME");
  add_options(flags, Commands::kPrepare, c);
  if (!flags.parse(arguments)) return kExitOk;
  flags.apply();
  COMPACT_CHECK(!input.empty(), "--input FILE... is needed");
  COMPACT_CHECK(!output.empty(), "--output PATH is needed");
  options.strict = c.strict;
  Console console(std::cout, isatty(STDOUT_FILENO) != 0);
  int64_t percent = -1;
  options.progress = [&](int64_t done, int64_t total) {
    if (total == 0 || done * 100 / total == percent) return;
    percent = done * 100 / total;
    console.bar(done, total, "bytes");
  };
  const Prepared p = prepare(input, *make_tokenizer(c.tokenizer), output, options);
  console.line(cat(output, ": ", format_count(p.tokens), " tokens from ", format_count(p.documents),
                   " documents in ", p.files, " files (", format_bytes(p.text_bytes), " of text)"));
  for (const std::string& line : p.warnings) console.line("warning: " + line);
  return kExitOk;
}

}  // namespace compact::cli
