// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/evaluate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/printable.h"
#include "compact/tasks/references.h"
#include "compact/tasks/trained_model.h"

namespace compact {

MetricsRow eval_row(const std::string& prefix, const EvalResult& r) {
  MetricsRow row = {{prefix + "_loss", r.loss}};
  if (r.accuracy) {
    row.emplace_back(prefix + "_accuracy", *r.accuracy);
    if (r.in_five) row.emplace_back(prefix + "_top5_accuracy", *r.in_five);
  } else if (!r.values) {
    row.emplace_back(prefix + "_perplexity", std::exp(r.loss));
  }
  if (r.rewards) {
    const auto& [chosen, rejected] = *r.rewards;
    row.emplace_back(prefix + "_reward_chosen", chosen);
    row.emplace_back(prefix + "_reward_rejected", rejected);
    row.emplace_back(prefix + "_margin", chosen - rejected);
  }
  for (const auto& [name, value] : r.scores) row.emplace_back(cat(prefix, "_", name), value);
  return row;
}

std::optional<std::pair<std::string, std::string>> f1_class(const std::string& prefix,
                                                            const EvalResult& r) {
  if (r.f1_class.empty()) return {};
  return std::pair(prefix + "_f1_class", r.f1_class);
}

std::vector<std::string> eval_figures(const Task& task) {
  std::vector<std::string> all = {"loss"};
  if (!task.pairs.empty()) {
    all.insert(all.end(), {"accuracy", "margin", "reward_chosen"});
  } else if (task.attention.head_dim > 0) {
    all.emplace_back("perplexity");
  } else if (std::ranges::find(task.metrics, "pearson") == task.metrics.end()) {
    all.insert(all.end(), {"accuracy", "top5_accuracy"});
  }
  for (const std::string& name : task.metrics) {
    if (std::ranges::find(all, name) == all.end()) all.push_back(name);
  }
  return all;
}

std::string eval_text(const std::string& prefix, const EvalResult& r, const std::string& unit) {
  std::string text;
  for (const auto& [name, value] : eval_row(prefix, r)) {
    const std::string number = formatted(name.ends_with("perplexity") ? "%.2f" : "%.4f", value);
    text += cat(name, " ", number);
    if (name == prefix + "_f1" && !r.f1_class.empty()) {
      text += cat(" of `", printable(r.f1_class), "`");
    }
    text += "  ";
  }
  return cat(text, "(", format_count(r.targets), " ", unit, ")");
}

Evaluation evaluate(const TrainConfig& config, Console* console) {
  TrainedModel model = open_trained_model(config);
  const TrainConfig& c = model.config;
  if (!model.task.pairs.empty() && c.reference != "none") {
    const auto reference = reference_of_run(c, model.task, model.network->device(), model.warnings);
    const auto progress = [&](int64_t done, int64_t total) {
      if (console) console->bar(done, total, "pairs scored");
    };
    set_references(c, model.task, *reference, 0, progress, *single_group());
  }
  Evaluation evaluation{
      .results = {}, .unit = model.task.target_unit(), .warnings = model.warnings};
  for (const auto& [prefix, data] : model.task.held_out()) {
    evaluation.results.emplace_back(
        prefix, evaluate_samples(*model.network, *data, c.max_eval_samples,
                                 c.per_device_eval_batch_size, model.task, console));
  }
  return evaluation;
}

}  // namespace compact
