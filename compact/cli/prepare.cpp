// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "compact/apps/python_prepare.h"
#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/cli/commands.h"
#include "compact/cli/train_flags.h"
#include "compact/config/exit_codes.h"
#include "compact/data/files/byte_source.h"
#include "compact/data/files/json_field.h"
#include "compact/data/files/odd_ones.h"
#include "compact/data/files/text_lines.h"
#include "compact/report/metrics.h"
#include "compact/tasks/tokenizer_store.h"

namespace compact::cli {
namespace {

// The values of a flag, where others may be unknown here.
std::vector<std::string> values_of(const std::string& flag,
                                   const std::vector<std::string>& arguments) {
  std::vector<std::string> values;
  bool on = false;
  for (const std::string& a : arguments) {
    if (a.starts_with("--")) {
      on = a == flag;
      if (a.starts_with(flag + "=")) values.push_back(a.substr(flag.size() + 1)), on = true;
    } else if (on) {
      values.push_back(a);
    }
  }
  return values;
}

// Why the arguments are for `python -m compact.prepare`; empty: all is read here.
std::string beyond_this(const std::vector<std::string>& arguments) {
  const auto is_empty = [](const std::string& a) { return a.empty() || a.ends_with('='); };
  if (std::ranges::any_of(arguments, is_empty)) return "";  // the flags refuse it
  for (const char* const flag : {"--data", "--turns"}) {
    if (!values_of(flag, arguments).empty()) return flag;
  }
  const std::vector<std::string> inputs = values_of("--input", arguments);
  for (const std::string& input : inputs) {
    const std::string_view name = without_compression(input);
    for (const char* const kind : {".json", ".csv", ".tsv", ".parquet", ".arrow"}) {
      if (name.ends_with(kind)) return cat("--input ", input);
    }
    if (!name.ends_with(".jsonl") || !is_file(input)) continue;
    if (!values_of("--field", arguments).empty()) continue;
    JsonField fields[] = {{"text"}, {"messages"}, {"conversations"}, {"prompt"}, {"instruction"}};
    std::vector<std::string> others;
    std::string error;
    TextLines lines(input);
    try {
      if (!lines.next() || !json_fields(lines.line(), fields, others, error)) continue;
    } catch (const OddOne&) {
      continue;  // is said where it is read
    }
    if (!fields[0].kind.empty()) continue;
    for (const JsonField& field : fields) {
      if (!field.kind.empty()) return cat(input, " with `", field.name, "`");
    }
  }
  for (const std::string& tokenizer : values_of("--tokenizer", arguments)) {
    if (inputs.empty() || !is_folder(tokenizer)) continue;
    try {
      open_tokenizer(tokenizer);
    } catch (const InputError& error) {
      return cat("--tokenizer ", error.what());
    }
  }
  return "";
}

// Becomes the program that is called.
[[noreturn]] void become(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& a : command) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  fail_with_errno(command[0], "cannot be started");
}

}  // namespace

int run_prepare(const Command& command, const std::vector<std::string>& arguments) {
  if (const std::string why = beyond_this(arguments); !why.empty()) {
    std::vector<std::string> call = prepare_command(why);
    std::cerr << "compact: " << why << " is for python/compact/prepare, run by " << call[0]
              << std::endl;
    call.insert(call.end(), arguments.begin(), arguments.end());
    become(call);
  }
  Flags flags("compact prepare", command.summary);
  std::vector<std::string> input;
  std::string output;
  TrainConfig c;
  c.tokenizer = "bytes";
  PrepareOptions options;
  flags.group("Files");
  flags.add("input", input, "text: .txt, .jsonl, each also .gz, .xz, .zst, or folders of them",
            "FILE_OR_PATTERN...");
  std::vector<std::string> data;
  flags.add("data", data,
            "data sets of any kind (Parquet, chats, names of the hub): with all other arguments "
            "they go to `python -m compact.prepare`, as inputs and tokenizers do that are not "
            "read here",
            "FILE_OR_NAME...");
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
  const Prepared p = prepare(input, *open_tokenizer(c.tokenizer), output, options);
  console.line(cat(output, ": ", format_count(p.tokens), " tokens from ", format_count(p.documents),
                   " documents in ", p.files, " files (", format_bytes(p.text_bytes), " of text)"));
  for (const std::string& line : p.warnings) console.line("warning: " + line);
  return kExitOk;
}

}  // namespace compact::cli
