// SPDX-License-Identifier: Apache-2.0
#include "compact/train/results.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/io/json_file.h"
#include "compact/tasks/adapters.h"

namespace compact {

namespace {

template <class T>
double mean_of_latest(const std::vector<T>& all, int64_t count) {
  const int64_t recent = std::min(count, std::ssize(all));
  return std::accumulate(all.end() - recent, all.end(), 0.0) / static_cast<double>(recent);
}

}  // namespace

double recent_step_seconds(const RunFigures& figures, int64_t count) {
  return mean_of_latest(figures.step_seconds, count);
}

double recent_step_samples(const RunFigures& figures, int64_t count) {
  return mean_of_latest(figures.step_samples, count);
}

double typical_step_seconds(const RunFigures& figures) {
  std::vector<double> x = figures.step_seconds;
  if (x.size() > 1) x.erase(x.begin());
  const auto middle = x.begin() + static_cast<int64_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}

namespace {

// ", 1.2 MiB a step between ranks, 80 % of the time during other work"
std::string traffic_text(const RunFigures& figures) {
  const GroupTraffic& all = figures.traffic;
  if (all.bytes == 0) return {};
  const auto steps = static_cast<int64_t>(figures.step_seconds.size());
  std::string text = cat(", ", format_bytes(all.bytes / steps), " a step between ranks");
  if (all.busy > 0) {
    text += formatted(", %.0f %% of their time during other work",
                      100 * std::max(0.0, 1 - all.waited / all.busy));
  }
  return text;
}

}  // namespace

std::string result_line(const RunState& s, const RunFigures& figures) {
  const std::string done = cat("done: ", s.step, " steps in ", format_duration(s.seconds));
  if (figures.step_seconds.empty()) return done;
  return formatted(
      "%s, %.3f s a step, peak %s (held after forward %s, of it slots %s)%s%s", done.c_str(),
      typical_step_seconds(figures), format_bytes(figures.highest_peak_bytes).c_str(),
      format_bytes(figures.held_bytes).c_str(), format_bytes(figures.saved_bytes).c_str(),
      figures.resident_bytes ? cat(", process ", format_bytes(*figures.resident_bytes)).c_str()
                             : "",
      traffic_text(figures).c_str());
}

void write_model(const TrainConfig& config, const Task& task, const Network& network) {
  write_trained(config.output_dir, task, network);
}

void write_results(const TrainConfig& config, const RunState& state, const RunFigures& figures,
                   const Evaluations& evaluations, const Task& task, const Network& network,
                   const Optimizer& optimizer) {
  nlohmann::ordered_json results;
  for (const auto& [prefix, evaluation] : evaluations) {
    for (const auto& [name, value] : eval_row(prefix, evaluation))
      results[name] = number_or_null(value);
    if (const auto named = f1_class(prefix, evaluation)) results[named->first] = named->second;
    results[cat(prefix, "_", task.target_unit())] = evaluation.targets;
  }
  results["train_loss"] = state.total_loss / static_cast<double>(std::max<int64_t>(1, state.step));
  results["train_runtime"] = state.seconds;
  results["steps"] = state.step;
  results["total_" + task.target_unit()] = state.tokens;
  for (const auto& [name, value] : task.data_figures) results[name] = value;
  results["parameters"] = network.parameter_count();
  results["memory/planned_peak_bytes"] = figures.planned_peak_bytes;
  if (!figures.step_seconds.empty()) {
    const double seconds = typical_step_seconds(figures);
    const double units = static_cast<double>(task.units) *
                         recent_step_samples(figures, std::ssize(figures.step_samples));
    results["step_seconds"] = seconds;
    results[task.unit + "_per_second"] = units / seconds;
    results["memory/peak_bytes"] = figures.highest_peak_bytes;
    results["memory/held_bytes"] = figures.held_bytes;
    results["memory/saved_bytes"] = figures.saved_bytes;
    if (network.device().is_cuda()) results["memory/reserved_bytes"] = figures.reserved_bytes;
    if (state.ranks > 1) {
      const auto steps = static_cast<double>(figures.step_seconds.size());
      results["ranks"] = state.ranks;
      results["zero"] = config.zero;
      for (const std::string& peaks : figures.rank_peaks) {
        const auto each = split(peaks, ' ');
        results["memory/rank_peak_bytes"].push_back(std::stoll(each.at(0)));
        results["memory/rank_planned_peak_bytes"].push_back(std::stoll(each.at(1)));
      }
      const GroupTraffic& all = figures.traffic;
      results["sent_bytes_per_step"] = static_cast<double>(all.bytes) / steps;
      if (all.busy > 0) results["sent_seconds_per_step"] = all.busy / steps;
      results["sent_waited_seconds_per_step"] = all.waited / steps;
    }
    if (figures.resident_bytes) results["memory/resident_bytes"] = *figures.resident_bytes;
  }
  int64_t weights = figures.weights_bytes, moments = 0;
  for (const auto& [kind, bytes] : optimizer.bytes()) {
    if (kind == "outside") {
      results["memory/optimizer_outside_bytes"] = bytes;
      continue;
    }
    (kind == "carrier" || kind == "projection" ? weights : moments) += bytes;
  }
  results["memory/weights_bytes"] = weights;
  if (figures.weights_outside_bytes > 0) {
    results["memory/weights_outside_bytes"] = figures.weights_outside_bytes;
  }
  results["memory/optimizer_bytes"] = moments;
  results["preset"] = config.preset;
  results["matmul_path"] = state.matmul_path;
  write_json(config.output_dir + "/all_results.json", results);
}

}  // namespace compact
