// SPDX-License-Identifier: Apache-2.0
#include "compact/train/run_evaluation.h"

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/tasks/setup.h"
#include "compact/train/ranks.h"

namespace compact {

RunEvaluation::RunEvaluation(const TrainConfig& config, const Task& task, Console& console,
                             Group& group)
    : config_(config),
      task_(task),
      console_(console),
      group_(group),
      interval_(evaluation_interval(config, group.size(), task.train->size())),
      batch_(config.per_device_eval_batch_size) {
  if (config.load_best_model_at_end) best_.emplace(config, task);
}

bool RunEvaluation::due(int64_t step) const {
  return interval_ > 0 && task_.validation && step % interval_ == 0;
}

EvalResult RunEvaluation::evaluate(const std::string& prefix, const Dataset& data,
                                   const Network& network, const RunState& state,
                                   MetricsWriter* metrics) {
  const EvalResult r = evaluate_within_memory(network, data, config_.max_eval_samples, batch_,
                                              task_, console_, group_);
  MetricsRow row = eval_row(prefix, r);
  row.emplace_back("epoch", task_.train->epochs(state.window));
  if (metrics) metrics->write(state.step, row);
  console_.line(cat("step ", state.step, "  ", eval_text(prefix, r, task_.target_unit())));
  return r;
}

bool RunEvaluation::validate(const Network& network, RunState& state, MetricsWriter* metrics) {
  const EvalResult r = evaluate("eval", *task_.validation, network, state, metrics);
  if (!best_) return false;
  bool best = false;
  lead(group_, [&] {
    const std::optional<double> value = best_->better(r, state);
    if (!value) return;
    best = true;
    console_.line(cat("step ", state.step, "  best ", best_->metric(), " so far"));
    if (!best_->keep(*value, network, state, console_)) all_kept_ = false;
  });
  return best;
}

bool RunEvaluation::take_best(Network& network, RunState& state, MetricsWriter* metrics) {
  if (!best_) return false;
  bool other = false;
  const bool best = validate(network, state, metrics);
  lead(group_, [&] {
    // The network is that model, whether it could be kept or not.
    if (best) state.best_step = state.step;
    if (state.best_step == 0) {
      return console_.line(cat("warning: no evaluation gave a ", best_->metric(),
                               "; the model is that of the last step"));
    }
    other = state.best_step != state.step;
    if (other) best_->load(network);
    console_.line(cat("the model of step ", state.best_step, " had the best ", best_->metric(),
                      other && !all_kept_ ? " of those that could be kept" : ""));
  });
  other = group_.sum_of(int64_t{other}) > 0;
  if (other) share_model(group_, network);
  return other;
}

Evaluations RunEvaluation::all(const Network& network, const RunState& state,
                               MetricsWriter* metrics) {
  Evaluations all;
  for (const auto& [prefix, data] : task_.held_out()) {
    all.emplace_back(prefix, evaluate(prefix, *data, network, state, metrics));
  }
  return all;
}

}  // namespace compact
