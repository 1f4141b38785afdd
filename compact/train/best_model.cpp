// SPDX-License-Identifier: Apache-2.0
#include "compact/train/best_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/io/json_file.h"
#include "compact/tasks/adapters.h"

namespace compact {
namespace {

bool smaller_is_better(const std::string& metric) {
  return metric == "loss" || metric == "perplexity";
}

constexpr const char* kFile = "best_model.json";

}  // namespace

BestModel::BestModel(const TrainConfig& c, const Task& task)
    : folder_(c.output_dir + "/best"),
      metric_(!c.metric_for_best_model.empty() ? c.metric_for_best_model
              : task.metrics.empty()           ? "loss"
                                               : task.metrics[0]),
      task_(task) {
  if (metric_.starts_with("eval_")) metric_ = metric_.substr(5);
  COMPACT_CHECK(task.validation, "--load_best_model_at_end: there is nothing to evaluate on");
  const std::vector<std::string> known = eval_figures(task);
  COMPACT_CHECK(std::ranges::find(known, metric_) != known.end(),
                "--metric_for_best_model: an evaluation has no `", metric_, "`",
                suggestion(metric_, known));
}

std::string BestModel::take_over(RunState& s) const {
  if (s.best_step == 0) return {};
  const std::filesystem::path file = std::filesystem::path(folder_) / kFile;
  std::string reason;
  if (!is_file(file)) {
    reason = cat("is not in ", folder_);
  } else {
    const nlohmann::json kept = read_json(file);
    const auto value = [&](const char* name) {
      return kept.is_object() ? kept.value(name, nlohmann::json()) : nlohmann::json();
    };
    if (value("metric") != metric_) {
      reason = cat("was chosen by another metric than ", metric_);
    } else if (value("step") != s.best_step) {
      reason = cat("is not the one in ", folder_);
    }
  }
  if (reason.empty()) return {};
  const int64_t step = std::exchange(s.best_step, 0);
  return cat("the best model so far, of step ", step, ", ", reason,
             ": from here on the best is looked for again");
}

std::optional<double> BestModel::better(const EvalResult& result, const RunState& s) const {
  std::vector<std::string> known;
  for (const auto& [name, value] : eval_row("eval", result)) {
    known.push_back(name.substr(5));
    if (known.back() != metric_) continue;
    if (std::isnan(value)) return {};
    const bool better = s.best_step == 0 ||
                        (smaller_is_better(metric_) ? value < s.best_value : value > s.best_value);
    return better ? std::optional(value) : std::nullopt;
  }
  fail("--metric_for_best_model: an evaluation has no `", metric_, "`", suggestion(metric_, known));
}

bool BestModel::keep(double value, const Network& network, RunState& s, Console& console) const {
  const auto fill = [&](const std::filesystem::path& folder) {
    write_trained(folder, task_, network);
    write_files_atomically(folder, task_.files);
    write_json(folder / kFile, {{"step", s.step}, {"metric", metric_}, {"value", value}});
  };
  if (!or_warn(console, cat("the best model, of step ", s.step),
               [&] { write_directory_atomically(folder_, fill); })) {
    return false;
  }
  s.best_value = value;
  s.best_step = s.step;
  return true;
}

void BestModel::load(Network& network) const { load_trained(network, folder_); }

}  // namespace compact
