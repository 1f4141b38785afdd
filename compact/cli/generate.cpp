// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/generate.h"

#include <iostream>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/cli/commands.h"
#include "compact/cli/train_flags.h"
#include "compact/config/exit_codes.h"

namespace compact::cli {
namespace {

constexpr int64_t kLargestPrompt = int64_t{64} << 20;

}  // namespace

int run_generate(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact generate", command.summary);
  GenerateOptions o;
  std::string prompt_file;
  flags.group("Text");
  flags.add({.name = "prompt",
             .help = "text to go on from; empty: the start of a document",
             .values = "TEXT",
             .may_be_empty = true,
             .set = [&o](const auto& v, const auto&) { o.prompt = v[0]; }});
  flags.add("prompt_file", prompt_file,
            "file with the prompt; one line feed at its end is not read", "FILE");
  flags.add("chat", o.chat,
            "the prompt is what a user says to a chat model, or messages as JSON; "
            "transformers renders it by the folder's template, and the answer alone is shown");
  flags.add("stop", o.stop, "a text ends before the first of these strings", "TEXT...");
  flags.add("max_new_tokens", o.max_new_tokens, "tokens to write, unless the text ends before");
  flags.add("num_samples", o.num_samples, "texts to write");
  flags.add("temperature", o.sampling.temperature, "0: always the likeliest token");
  flags.add("top_k", o.sampling.top_k, "choose among the k likeliest; 0: all");
  flags.add("top_p", o.sampling.top_p, "choose among the likeliest that together reach p",
            "0 < x <= 1");
  add_options(flags, Commands::kGenerate, o.config);
  if (!flags.parse(arguments)) return kExitOk;
  flags.apply();
  if (!prompt_file.empty()) {
    COMPACT_CHECK(o.prompt.empty(), "either --prompt or --prompt_file");
    o.prompt = read_text(prompt_file, kLargestPrompt);
    if (o.prompt.ends_with('\n')) o.prompt.pop_back();
  }
  COMPACT_CHECK(!o.chat || !o.prompt.empty(), "--chat: --prompt or --prompt_file is needed");
  int64_t shown = -1;  // the sample whose prompt was printed last
  const auto begin = [&](int64_t sample) {
    for (; shown < sample; ++shown) {
      if (shown >= 0) std::cout << "\n----------\n";
      if (!o.chat) std::cout << o.prompt;
    }
  };
  std::vector<std::string> warnings;
  const auto warn = [&] {
    for (const std::string& line : std::exchange(warnings, {})) {
      std::cerr << "warning: " << line << std::endl;
    }
  };
  generate(
      o,
      [&](int64_t sample, std::string_view text) {
        warn();
        begin(sample);
        std::cout << text << std::flush;
      },
      warnings);
  warn();
  begin(o.num_samples - 1);
  std::cout << std::endl;
  return kExitOk;
}

}  // namespace compact::cli
