// SPDX-License-Identifier: Apache-2.0
#include "compact/train/best_model.h"

#include <cmath>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/io/model_weights.h"
#include "compact/train/setup.h"

namespace compact {
namespace {

bool smaller_is_better(const std::string& metric) {
  return metric == "loss" || metric == "perplexity";
}

}  // namespace

BestModel::BestModel(const TrainConfig& c, const Task& task)
    : folder_(c.output_dir + "/best"),
      metric_(!c.metric_for_best_model.empty() ? c.metric_for_best_model
              : task.metrics.empty()           ? "loss"
                                               : task.metrics[0]),
      task_(task) {
  if (metric_.starts_with("eval_")) metric_ = metric_.substr(5);
  COMPACT_CHECK(task.validation, "--load_best_model_at_end: there is nothing to evaluate on");
}

bool BestModel::offer(const EvalResult& result, const Network& network, RunState& s) const {
  const MetricsRow row = eval_row("eval", result);
  std::vector<std::string> known;
  for (const auto& [name, value] : row) {
    known.push_back(name.substr(5));
    if (known.back() != metric_) continue;
    const bool better = s.best_step == 0 ||
                        (smaller_is_better(metric_) ? value < s.best_value : value > s.best_value);
    if (!better || std::isnan(value)) return false;
    write_directory_atomically(folder_, [&](const std::filesystem::path& folder) {
      write_model_folder(folder, network.named_tensors(), task_.config);
      for (const auto& [file, text] : task_.files) write_file_atomically(folder / file, text);
    });
    s.best_value = value;
    s.best_step = s.step;
    return true;
  }
  fail("--metric_for_best_model: an evaluation has no `", metric_, "`", suggestion(metric_, known));
}

void BestModel::load(Network& network) const { load_weights(network, folder_); }

}  // namespace compact
