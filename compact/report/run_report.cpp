// SPDX-License-Identifier: Apache-2.0
#include "compact/report/run_report.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/io/json_file.h"

namespace compact {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

void append(Curve& curve, const nlohmann::json& row, const char* place, const char* key,
            double unit = 1) {
  const auto at = row.find(place), value = row.find(key);
  if (at == row.end() || value == row.end()) return;
  if (!at->is_number() || !value->is_number()) return;
  curve.emplace_back(at->get<double>(), value->get<double>() * unit);
}

// Whether runs are compared by difference, not by factor.
bool is_difference(const ReportColumn& c) {
  using enum ReportColumn::Unit;
  return c.unit == kLoss || c.unit == kShare || c.unit == kSpread;
}

}  // namespace

double RunReport::number(const std::string& name) const {
  if (name == "loss") return loss.empty() ? kNone : loss.back().second;
  if (!rounds.empty() && (name.starts_with("step_s") || name.ends_with("_per_second"))) {
    std::vector<double> x = rounds;
    std::ranges::sort(x);
    const double median = (x[(x.size() - 1) / 2] + x[x.size() / 2]) / 2;
    if (name == "step_seconds") return median;
    if (name == "step_spread") return (x.back() - x.front()) / median;
    RunReport trained{.results = results};
    return trained.number(name) * trained.number("step_seconds") / median;
  }
  if (results.is_object()) {
    const auto found = results.find(name);
    if (found != results.end() && found->is_number()) return found->get<double>();
  }
  if (name == "eval_loss" && !eval_loss.empty()) return eval_loss.back().second;
  return kNone;
}

void read_run(const std::filesystem::path& folder, RunReport& report) {
  report.folder = folder.string();
  std::ifstream rows(folder / "metrics.jsonl");
  for (std::string line; std::getline(rows, line);) {
    const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object()) continue;
    append(report.loss, row, "step", "loss");
    append(report.eval_loss, row, "step", "eval_loss");
    append(report.eval_accuracy, row, "epoch", "eval_accuracy", 100);
  }
  if (const auto file = folder / "all_results.json"; is_file(file))
    report.results = read_json(file);
}

std::span<const ReportColumn> report_columns() {
  using Unit = ReportColumn::Unit;
  static const ReportColumn all[] = {
      {"loss", "train loss", Unit::kLoss},
      {"eval_loss", "eval loss", Unit::kLoss},
      {"eval_perplexity", "perplexity", Unit::kNumber},
      {"eval_accuracy", "accuracy", Unit::kShare},
      {"test_accuracy", "test accuracy", Unit::kShare},
      {"memory/peak_bytes", "peak memory", Unit::kBytes},
      {"memory/held_bytes", "held", Unit::kBytes},
      {"memory/saved_bytes", "saved", Unit::kBytes},
      {"step_seconds", "step time", Unit::kSeconds},
      {"step_spread", "spread", Unit::kSpread},
      {"tokens_per_second", "tokens/s", Unit::kRate},
      {"samples_per_second", "samples/s", Unit::kRate},
      {"images_per_second", "images/s", Unit::kRate},
      {"nodes_per_second", "nodes/s", Unit::kRate},
      {"graphs_per_second", "graphs/s", Unit::kRate},
  };
  return all;
}

std::vector<ReportColumn> columns_of(std::span<const RunReport> runs) {
  std::vector<ReportColumn> some;
  for (const ReportColumn& c : report_columns()) {
    const bool common = c.unit != ReportColumn::Unit::kShare &&
                        c.unit != ReportColumn::Unit::kSpread &&
                        c.unit != ReportColumn::Unit::kRate && c.key != "eval_perplexity";
    if (common || std::ranges::any_of(
                      runs, [&](const RunReport& r) { return std::isfinite(r.number(c.key)); })) {
      some.push_back(c);
    }
  }
  return some;
}

std::string format_value(const ReportColumn& column, double value) {
  if (!std::isfinite(value)) return "-";
  switch (column.unit) {
    case ReportColumn::Unit::kLoss:
      return formatted("%.4f", value);
    case ReportColumn::Unit::kShare:
      return formatted("%.2f %%", 100 * value);
    case ReportColumn::Unit::kSpread:
      return formatted("%.0f %%", 100 * value);
    case ReportColumn::Unit::kNumber:
      return formatted(value < 1000 ? "%.3f" : "%.4g", value);
    case ReportColumn::Unit::kBytes:
      return format_bytes(std::llround(value));
    case ReportColumn::Unit::kSeconds:
      return value < 0.1 ? formatted("%.1f ms", value * 1e3) : formatted("%.3f s", value);
    case ReportColumn::Unit::kRate:
      return format_count(std::llround(value));
  }
  return "-";
}

std::string format_relative(const ReportColumn& column, double value, double first) {
  if (!std::isfinite(value) || !std::isfinite(first)) return "";
  if (column.unit == ReportColumn::Unit::kLoss)
    return formatted("%+.4f", std::abs(value - first) < 5e-5 ? 0.0 : value - first);
  if (column.unit == ReportColumn::Unit::kShare)
    return formatted("%+.2f", std::abs(value - first) < 5e-5 ? 0.0 : 100 * (value - first));
  return first == 0 || column.unit == ReportColumn::Unit::kSpread
             ? ""
             : formatted("%.2fx", value / first);
}

std::string report_table(std::span<const RunReport> runs) {
  const std::vector<ReportColumn> columns = columns_of(runs);
  std::vector<std::vector<std::string>> rows = {{"preset"}};
  for (const ReportColumn& c : columns) rows[0].push_back(c.title);
  for (const RunReport& run : runs) {
    std::vector<std::string> values = {run.preset}, relative = {""};
    for (const ReportColumn& c : columns) {
      const double value = run.number(c.key);
      values.push_back(format_value(c, value));
      relative.push_back(format_relative(c, value, runs[0].number(c.key)));
    }
    if (run.exit_code != 0) values[0] += " (failed)";
    rows.push_back(std::move(values));
    const bool says = std::ranges::any_of(relative, [](const auto& r) { return !r.empty(); });
    if (&run != &runs[0] && says) rows.push_back(std::move(relative));
  }
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      out += (i ? "  " + space : "") + row[i] + (i ? "" : space);
    }
    out += "\n";
    if (&row == &rows[0]) {
      for (size_t i = 0; i < row.size(); ++i) out += (i ? "  " : "") + std::string(widths[i], '-');
      out += "\n";
    }
  }
  for (const RunReport& run : runs) {
    if (!run.flags.empty()) out += run.preset + ": " + run.flags + "\n";
  }
  return out;
}

nlohmann::ordered_json report_json(std::span<const RunReport> runs) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const RunReport& run : runs) {
    nlohmann::ordered_json values, relative, curves;
    for (const ReportColumn& c : columns_of(runs)) {
      const double value = run.number(c.key), first = runs[0].number(c.key);
      values[c.key] = number_or_null(value);
      relative[c.key] = number_or_null(is_difference(c) ? value - first : value / first);
    }
    for (const auto& [name, curve] : {std::pair{"loss", &run.loss},
                                      {"eval_loss", &run.eval_loss},
                                      {"eval_accuracy", &run.eval_accuracy}}) {
      curves[name] = nlohmann::ordered_json::array();
      for (const auto& [step, value] : *curve) curves[name].push_back({step, value});
    }
    all.push_back({{"preset", run.preset},
                   {"flags", run.flags},
                   {"folder", run.folder},
                   {"exit_code", run.exit_code},
                   {"message", run.message},
                   {"rounds", run.rounds},
                   {"values", values},
                   {"relative_to_first", relative},
                   {"results", run.results},
                   {"curves", curves}});
  }
  return all;
}

}  // namespace compact
