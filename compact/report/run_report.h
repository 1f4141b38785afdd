// SPDX-License-Identifier: Apache-2.0
// The results of finished runs, and tables of them side by side.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "compact/report/chart.h"

namespace compact {

struct RunReport {
  std::string preset;  // or the run's own name
  std::string flags;   // its flags beside the preset
  std::string folder;  // empty where the run did not begin
  int exit_code = 0;
  std::string message;     // the error of a run that failed
  nlohmann::json results;  // all_results.json; null where the run did not finish
  Curve loss, eval_loss;   // of metrics.jsonl; finite values only
  Curve eval_accuracy;     // percent over epochs
  // Seconds of a step, median of each round in which the runs were measured in turn; may be empty.
  std::vector<double> rounds;

  // A number of `results`, or of the curves' ends: "loss" (the last logged training loss) and
  // "eval_loss". Where there are rounds, "step_seconds" is their median, from which units per
  // second follow, and "step_spread" is slowest less fastest, as a part of the median. NaN for
  // unknown numbers.
  double number(const std::string& name) const;
};

// Reads FOLDER/metrics.jsonl and all_results.json, as far as they exist; skips a row that was cut
// off. Throws InputError on files that are not JSON.
void read_run(const std::filesystem::path& folder, RunReport& report);

// A column of the comparison: where the number stands and how it is written.
struct ReportColumn {
  std::string key, title;
  enum class Unit { kLoss, kShare, kSpread, kNumber, kBytes, kSeconds, kRate } unit;
};
std::span<const ReportColumn> report_columns();
// The columns that the task of these runs has.
std::vector<ReportColumn> columns_of(std::span<const RunReport> runs);

// The number as text ("1.53 GiB", "2.4310"), or "-" for NaN.
std::string format_value(const ReportColumn& column, double value);
// Relative to the first run: a difference for losses ("+0.0120") and shares (percent), else a
// factor ("0.35x").
std::string format_relative(const ReportColumn& column, double value, double first);

// For a console: one row per run with values and relative values, then the runs' flags beside their
// presets.
std::string report_table(std::span<const RunReport> runs);
// All numbers, relative numbers and curves.
nlohmann::ordered_json report_json(std::span<const RunReport> runs);

}  // namespace compact
