// SPDX-License-Identifier: Apache-2.0
#include "compact/train/compare.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/io/json_file.h"
#include "compact/ops/policy.h"
#include "compact/train/exit_codes.h"
#include "compact/train/output_folder.h"
#include "compact/train/process.h"
#include "compact/train/report_page.h"
#include "compact/train/run_report.h"
#include "compact/train/task.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

struct Entry {
  std::string name;                // of the folder and in tables
  std::vector<std::string> flags;  // of `compact train`
};

Entry entry_of(const std::string& text, const TrainConfig& config) {
  const bool file = text.find('/') != text.npos || text.ends_with(".policy");
  if (!file) {
    if (text != "auto") Policy::preset(text);
    return {text, {"--preset", text}};
  }
  COMPACT_CHECK(config.policy.empty(), "--presets ", text, ": --policy ", config.policy,
                " would stand above it; give one of them");
  Policy::from_file(text);
  return {fs::path(text).stem().string(), {"--preset", "off", "--policy", text}};
}

std::vector<Entry> entries_of(const CompareOptions& options) {
  COMPACT_CHECK(!options.presets.empty(), "--presets A,B,... is needed");
  std::vector<Entry> entries;
  for (const std::string& preset : options.presets) {
    entries.push_back(entry_of(preset, options.config));
    for (size_t i = 0; i + 1 < entries.size(); ++i) {
      COMPACT_CHECK(entries[i].name != entries.back().name, "--presets: `", entries.back().name,
                    "` comes twice");
    }
  }
  return entries;
}

// The program's own message, or else the last thing it said.
std::string message_of(const ProcessResult& result) {
  const std::string_view mark = "compact: error: ";
  for (auto line = result.errors.rbegin(); line != result.errors.rend(); ++line) {
    if (line->starts_with(mark)) return line->substr(mark.size());
  }
  return result.errors.empty() ? "no message" : result.errors.back();
}

std::string subtitle_of(const TrainConfig& c, const RunReport& run) {
  std::string text = c.model.empty() ? c.model_name_or_path : c.model;
  if (const double n = run.number("parameters"); n > 0) {
    text += " (" + format_count(static_cast<int64_t>(n)) + " parameters)";
  }
  text += cat(", ", c.optim, ", ", c.dtype, ", ", c.per_device_train_batch_size,
              c.task == language_modeling.name ? cat(" \u00d7 ", c.block_size, " tokens")
                                               : std::string(" samples"));
  if (c.gradient_accumulation_steps > 1) text += cat(" \u00d7 ", c.gradient_accumulation_steps);
  text += cat(" a step, seed ", c.seed, "; small figures: beside ", run.preset);
  return text;
}

}  // namespace

int compare(const CompareOptions& options, std::ostream& console, std::ostream& errors) {
  const TrainConfig& c = options.config;
  const std::vector<Entry> entries = entries_of(options);
  COMPACT_CHECK(c.resume_from_checkpoint.empty(),
                "--resume_from_checkpoint: a comparison starts its runs anew");
  check_run(c);
  std::vector<std::string> warnings;
  const auto lock = take_output_folder(c, warnings);
  for (const std::string& line : warnings) errors << "warning: " << line << std::endl;
  const fs::path folder(c.output_dir);
  const std::string program = options.program.empty() ? own_program() : options.program;

  std::vector<RunReport> runs;
  int first_failure = kExitOk;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    console << (i ? "\n" : "") << "== " << entry.name << " (" << i + 1 << " of " << entries.size()
            << ")" << std::endl;
    std::vector<std::string> arguments = {program, "train"};
    for (const auto* more : {&options.train_arguments, &entry.flags}) {
      arguments.insert(arguments.end(), more->begin(), more->end());
    }
    arguments.insert(arguments.end(), {"--output_dir", (folder / entry.name).string()});
    const ProcessResult result =
        run_process(arguments, [&](const std::string& line) { errors << line << std::endl; });
    RunReport run{.preset = entry.name, .exit_code = result.exit_code};
    if (result.exit_code != 0) run.message = message_of(result);
    read_run(folder / entry.name, run);
    runs.push_back(std::move(run));
    if (first_failure == kExitOk) first_failure = result.exit_code;
    if (first_failure == kExitOk && result.signal != 0) first_failure = 128 + result.signal;
    if (result.signal != 0 || result.exit_code == kExitInterrupt ||
        result.exit_code == kExitTerminate) {
      break;
    }
  }

  console << "\n" << report_table(runs);
  for (const RunReport& run : runs) {
    if (run.exit_code != 0) {
      console << run.preset << " failed (exit code " << run.exit_code << "): " << run.message
              << "\n";
    }
  }
  // Where no run could begin, there is nothing to say in a file.
  if (std::ranges::any_of(runs, [](const RunReport& r) { return is_folder(r.folder); })) {
    nlohmann::ordered_json json;
    json["config"] = nlohmann::ordered_json::parse(config_json(c));
    json["runs"] = report_json(runs);
    write_file_atomically(folder / "compare.json", json.dump(2) + "\n");
    write_file_atomically(folder / "compare.html",
                          report_page(runs, "Training compared", subtitle_of(c, runs[0])));
    console << "comparison in " << (folder / "compare.html").string() << " and compare.json\n";
  }
  console << std::flush;
  return first_failure;
}

}  // namespace compact
