// SPDX-License-Identifier: Apache-2.0
#include "compact/cli/commands.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string_view>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/config/exit_codes.h"
#include "compact/config/version.h"
#include "compact/train/failures.h"

namespace compact::cli {
namespace {

int report(std::string message, ExitCode code) {
  std::cout << std::flush;
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::cerr << "compact: error: " << message << std::endl;
  return code;
}

std::string help() {
  std::string out =
      "Trains larger models in the memory a person has.\n\n"
      "usage: compact COMMAND [--flag value]...\n\n";
  for (const Command& c : commands()) {
    out +=
        cat("  ", c.name, std::string(12 - std::string_view(c.name).size(), ' '), c.summary, "\n");
  }
  return out +
         "\nto start with:\n\n"
         "  compact plan --model llama-60m --preset exact\n"
         "  compact train --model llama-tiny --train_file book.txt --output_dir runs/one\n"
         "\n`compact COMMAND --help` shows the flags of a command, `compact --version` the "
         "version.\n";
}

int dispatch(const std::vector<std::string>& arguments, const std::string& commit) {
  const std::string first = arguments.empty() ? "" : arguments[0];
  if (first == "help" && arguments.size() > 1) {
    COMPACT_CHECK(arguments.size() == 2, "`help` takes one command");
    return dispatch({arguments[1], "--help"}, commit);
  }
  if (arguments.empty() || first == "--help" || first == "-h" || first == "help") {
    std::cout << help();
    return kExitOk;
  }
  if (first == "--version") {
    std::cout << "compact " << version() << " ("
              << (commit.empty() ? "" : "commit " + commit + ", ") << "torch " << torch_version()
              << ")\n";
    return kExitOk;
  }
  std::vector<std::string> names;
  for (const Command& c : commands()) {
    if (first == c.name) {
      // Several processes would overwrite each other's outputs.
      if (c.run == run_compare || c.run == run_prepare) {
        const Place place = place_of_process();
        COMPACT_CHECK(place.size == 1, "`", c.name, "` is for one process, this is rank ",
                      place.rank, " of ", place.size, " (WORLD_SIZE=1 is one process)");
      }
      return c.run(c, {arguments.begin() + 1, arguments.end()});
    }
    names.emplace_back(c.name);
  }
  if (first.starts_with("-")) names = {"--help", "--version"};
  fail("unknown command `", first, "`", suggestion(first, names));
}

}  // namespace

std::span<const Command> commands() {
  static constexpr Command kAll[] = {
      {"train", "Trains a model on text, images or graphs.", run_train},
      {"eval", "Measures loss, and perplexity or accuracy, of a model on text, images or graphs.",
       run_eval},
      {"generate", "Writes text with a trained model.", run_generate},
      {"prepare", "Turns text into a token file.", run_prepare},
      {"compare", "Trains under several presets and compares loss, memory and time.", run_compare},
      {"merge", "Adds trained adapters (LoRA) to their model and writes the whole.", run_merge},
      {"plan", "Says what a training step takes, and what fits, before it runs.", run_plan},
      {"visualize", "Draws what trained image networks have learned: filters and feature maps.",
       run_visualize},
      {"list",
       "Lists tasks, models, presets, treatments, roles, projections, tokenizers, optimizers, "
       "schedules, GPUs.",
       run_list},
      {"doctor", "Shows machine, build and paths in force, and tests every kernel.", run_doctor},
      {"docs", "Writes the reference of all commands as Markdown.", run_docs},
      {"completion", "Writes a shell's completion of commands, flags and names.", run_completion},
  };
  return kAll;
}

int run_program(const std::vector<std::string>& arguments, const std::string& commit) {
  try {
    return dispatch(arguments, commit);
  } catch (const LeftByAnother& e) {
    return e.failure.code;  // it was said
  } catch (const std::exception& e) {
    const ErrorText why = text_of(e);
    return report(why.message, why.code);
  }
}

}  // namespace compact::cli
