// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/compare.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <span>

#include "compact/apps/compare_entry.h"
#include "compact/apps/process.h"
#include "compact/apps/step_rounds.h"
#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/config/exit_codes.h"
#include "compact/config/option.h"
#include "compact/report/report_page.h"
#include "compact/report/run_report.h"
#include "compact/tasks/config_check.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/task.h"
#include "compact/train/output_folder.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

// The warnings of a run about options without effect, which it will print.
std::vector<std::string> ignored_options_of(const TrainConfig& c) {
  std::vector<std::string> lines = ignored_options(c);
  say_unused_bits(c, c.preset == "auto" ? Policy() : make_policy(c, lines), lines);
  return lines;
}

// Removes a shared option from the runs that ignore it, unless all ignore it; otherwise each would
// warn.
void leave_out_unread(const CompareOptions& options, std::vector<CompareEntry>& entries) {
  for (const std::string& argument : options.train_arguments) {
    const std::string flag = argument.substr(0, argument.find('='));
    std::vector<CompareEntry*> unread;
    for (CompareEntry& entry : entries) {
      const std::vector<std::string> ignored = ignored_options_of(entry.config);
      if (std::ranges::any_of(ignored,
                              [&](const auto& line) { return line.starts_with(flag + " "); }))
        unread.push_back(&entry);
    }
    if (unread.size() == entries.size()) continue;
    for (CompareEntry* entry : unread) std::erase(entry->arguments, argument);
  }
}

std::vector<CompareEntry> entries_of(const CompareOptions& options) {
  COMPACT_CHECK(!options.presets.empty(), "--presets A,B,... is needed");
  std::vector<CompareEntry> entries;
  for (const std::string& preset : options.presets) {
    CompareEntry entry = compare_entry(preset, options.config, options.train_arguments);
    COMPACT_CHECK(entry.budget_share == 0 || !entries.empty(), "--presets: ", entry.name,
                  ": a --budget in percent is of the first run's peak; this is the first");
    for (const CompareEntry& other : entries) {
      COMPACT_CHECK(other.name != entry.name, "--presets: `", entry.name,
                    "` comes twice; name one: `NAME=", trim(preset), "`");
    }
    check_run(entry.config);
    ignored_options_of(entry.config);  // an error before anything runs
    entries.push_back(std::move(entry));
  }
  leave_out_unread(options, entries);
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
  text += cat(" a step, learning rate ", for_task(c).learning_rate, ", seed ", c.seed,
              "; small figures: beside ", run.preset);
  return text;
}

// When the run in `folder` began to use it; nullopt where there is none.
std::optional<fs::file_time_type> begun(const fs::path& folder) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(folder / "train_config.json", error);
  return error ? std::nullopt : std::optional(time);
}

// Runs `compact train`; the result has how it ended and its files, unless it ended before it used
// the folder, which then holds another run's. `arguments` becomes its command line without
// --output_dir.
RunReport trained(const CompareEntry& entry, const fs::path& folder, const std::string& program,
                  std::span<const RunReport> earlier, std::ostream& errors, int& signal,
                  std::vector<std::string>& arguments) {
  RunReport run{.preset = entry.name, .flags = entry.flags};
  arguments = {program, "train"};
  arguments.insert(arguments.end(), entry.arguments.begin(), entry.arguments.end());
  if (entry.budget_share > 0) {
    // The peak that a budget limits: on a GPU that of its allocator's reserved memory.
    const double reserved = earlier[0].number("memory/reserved_bytes");
    const double peak = reserved > 0 ? reserved : earlier[0].number("memory/peak_bytes");
    if (!(peak > 0)) {
      run.exit_code = kExitInput;
      run.message = "--budget in percent: the first run left no peak to take it of";
      return run;
    }
    arguments.push_back(cat("--budget=", std::llround(entry.budget_share * peak), "B"));
  }
  std::vector<std::string> placed = arguments;
  placed.insert(placed.end(), {"--output_dir", folder.string()});
  const auto before = begun(folder);
  const ProcessResult result =
      run_process(placed, [&](const std::string& line) { errors << line << std::endl; });
  run.exit_code = result.exit_code;
  if (result.exit_code != 0) run.message = message_of(result);
  signal = result.signal;
  if (begun(folder) != before) read_run(folder, run);
  return run;
}

}  // namespace

int compare(const CompareOptions& options, std::ostream& console, std::ostream& errors) {
  const TrainConfig& c = options.config;
  COMPACT_CHECK(c.resume_from_checkpoint.empty(),
                "--resume_from_checkpoint: a comparison starts its runs at their beginning");
  COMPACT_CHECK(options.timing_rounds >= 0, "--timing_rounds must be at least 0, is ",
                options.timing_rounds);
  const std::vector<CompareEntry> entries = entries_of(options);
  std::vector<std::string> warnings;
  const auto lock = take_output_folder(c, warnings);
  for (const std::string& line : warnings) errors << "warning: " << line << std::endl;
  const fs::path folder(c.output_dir);
  const std::string program = options.program.empty() ? own_program() : options.program;

  std::vector<RunReport> runs;
  std::vector<std::vector<std::string>> arguments(entries.size());
  int first_failure = kExitOk;
  bool stopped = false;
  for (size_t i = 0; i < entries.size() && !stopped; ++i) {
    const CompareEntry& entry = entries[i];
    console << (i ? "\n" : "") << "== " << entry.name << " (" << i + 1 << " of " << entries.size()
            << ")" << (entry.flags.empty() ? "" : ": ") << entry.flags << std::endl;
    int signal = 0;
    runs.push_back(
        trained(entry, folder / entry.name, program, runs, errors, signal, arguments[i]));
    const int code = runs.back().exit_code;
    if (first_failure == kExitOk)
      first_failure = code != kExitOk || signal == 0 ? code : 128 + signal;
    stopped = signal != 0 || code == kExitInterrupt || code == kExitTerminate;
  }
  StepRounds rounds;
  if (!stopped && options.timing_rounds > 0) {
    console << "\n== step times, in turn" << std::endl;
    rounds = measure_rounds(options.timing_rounds, arguments, runs, errors);
    if (rounds.signal != 0 && first_failure == kExitOk) first_failure = 128 + rounds.signal;
  }

  console << "\n" << report_table(runs) << rounds.text();
  for (const RunReport& run : runs) {
    if (run.exit_code != 0) {
      console << run.preset << " failed (exit code " << run.exit_code << "): " << run.message
              << "\n";
    }
  }
  // Without any run's folder no files are written.
  if (std::ranges::any_of(runs, [](const RunReport& r) { return is_folder(r.folder); })) {
    nlohmann::ordered_json json;
    json["config"] = nlohmann::ordered_json::parse(config_json(c));
    json["rounds"] = {{"count", rounds.count},
                      {"cores", rounds.other.cores},
                      {"cores_of_other_work", rounds.other.taken}};
    json["runs"] = report_json(runs);
    write_file_atomically(folder / "compare.json", json.dump(2) + "\n");
    write_file_atomically(
        folder / "compare.html",
        report_page(runs, "Training compared", subtitle_of(c, runs[0]), rounds.text()));
    console << "comparison in " << (folder / "compare.html").string() << " and compare.json\n";
  }
  console << std::flush;
  return first_failure;
}

}  // namespace compact
