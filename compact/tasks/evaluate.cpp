// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/evaluate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/scores.h"
#include "compact/base/text.h"
#include "compact/ops/memory/memory.h"
#include "compact/tasks/trained_model.h"

namespace compact {

EvalResult evaluate_samples(const Network& network, const Dataset& data, int64_t most,
                            int64_t batch, const Task& task) {
  const int64_t count = most > 0 ? std::min(most, data.size()) : data.size();
  Score sum{.correct = 0, .in_five = 0};
  bool classes = false, five = false;
  std::vector<double> predicted, labels;
  const auto append = [](std::vector<double>& to, const at::Tensor& t) {
    const at::Tensor values = t.to(at::kDouble).contiguous();
    to.insert(to.end(), values.const_data_ptr<double>(),
              values.const_data_ptr<double>() + values.numel());
  };
  for (int64_t i = 0; i < count; i += batch) {
    const Batch samples = data.in_order(i, std::min(batch, count - i));
    check_targets(samples, task);
    const StepInputs b = inputs_of(samples, network.device());
    const Score s = network.score(b.inputs, b.target);
    sum.loss += s.loss;
    sum.targets += s.targets;
    sum.correct += s.correct;
    sum.in_five += s.in_five;
    classes = s.correct >= 0;
    five = s.in_five >= 0;
    if (task.metrics.empty()) continue;
    append(predicted, s.predicted);
    append(labels, samples.target);
  }
  const auto of_targets = [&](double x) {
    return x / static_cast<double>(std::max<int64_t>(1, sum.targets));
  };
  EvalResult result{.loss = of_targets(sum.loss), .targets = sum.targets};
  if (classes) {
    result.accuracy = of_targets(static_cast<double>(sum.correct));
    if (five) result.in_five = of_targets(static_cast<double>(sum.in_five));
  }
  result.values = !task.metrics.empty() && !classes;
  for (const std::string& name : task.metrics) {
    if (name == "accuracy" && classes) continue;
    result.scores.emplace_back(name, named_score(name, predicted, labels, task.positive_class));
  }
  return result;
}

EvalResult evaluate_within_memory(const Network& network, const Dataset& data, int64_t most,
                                  int64_t& batch, const Task& task, Console& console) {
  for (;;) {
    try {
      return evaluate_samples(network, data, most, batch, task);
    } catch (const std::exception& e) {
      const std::optional<std::string> what = out_of_memory(e);
      if (!what || batch == 1) throw;
      batch /= 2;
      console.line(cat("warning: ", *what, "; evaluation goes on with batches of ", batch));
    }
  }
}

MetricsRow eval_row(const std::string& prefix, const EvalResult& r) {
  MetricsRow row = {{prefix + "_loss", r.loss}};
  if (r.accuracy) {
    row.emplace_back(prefix + "_accuracy", *r.accuracy);
    if (r.in_five) row.emplace_back(prefix + "_top5_accuracy", *r.in_five);
  } else if (!r.values) {
    row.emplace_back(prefix + "_perplexity", std::exp(r.loss));
  }
  for (const auto& [name, value] : r.scores) row.emplace_back(cat(prefix, "_", name), value);
  return row;
}

std::vector<std::string> eval_figures(const Task& task) {
  std::vector<std::string> all = {"loss"};
  if (task.attention.head_dim > 0) {
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
    text += cat(name, " ", number, "  ");
  }
  return cat(text, "(", format_count(r.targets), " ", unit, ")");
}

Evaluation evaluate(const TrainConfig& config) {
  const TrainedModel model = open_trained_model(config);
  const TrainConfig& c = model.config;
  Evaluation evaluation{
      .results = {}, .unit = model.task.target_unit(), .warnings = model.warnings};
  for (const auto& [prefix, data] : model.task.held_out()) {
    evaluation.results.emplace_back(prefix,
                                    evaluate_samples(*model.network, *data, c.max_eval_samples,
                                                     c.per_device_eval_batch_size, model.task));
  }
  return evaluation;
}

}  // namespace compact
