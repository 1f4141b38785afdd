// SPDX-License-Identifier: Apache-2.0
// Loss and accuracy on held-out data: `compact eval`, and evaluation in training.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compact/config/config.h"
#include "compact/data/samples/dataset.h"
#include "compact/networks/network.h"
#include "compact/parallel/group.h"
#include "compact/report/metrics.h"
#include "compact/tasks/task.h"

namespace compact {

struct EvalResult {
  double loss = 0;      // mean over targets
  int64_t targets = 0;  // tokens, images, ...
  // For tasks with classes: the part of targets whose class came first; where there are more than
  // five classes, the part whose class was among the first five.
  std::optional<double> accuracy, in_five;
  std::optional<std::array<double, 2>> rewards;  // of chosen and rejected answers, means
  bool values = false;  // targets are values, the loss is their squared error
  std::vector<std::pair<std::string, double>> scores;  // other metrics, by name
  std::string f1_class = {};                           // the class that `f1` is of
};

// Evaluates by the task's metrics over the first `most` samples (0: all) in their order. `console`:
// shows how many are done, where it is a terminal.
EvalResult evaluate_samples(const Network& network, const Dataset& data, int64_t most,
                            int64_t batch, const Task& task, Console* console = nullptr);

// The same by all ranks of a group, which take batches in turn and all get the result of one
// process. Where memory runs out, halves `batch`, with a line on the console, down to 1.
EvalResult evaluate_within_memory(const Network& network, const Dataset& data, int64_t most,
                                  int64_t& batch, const Task& task, Console& console, Group& group);

// Rows `eval_loss`, `eval_accuracy`, ... for prefix `eval`; a perplexity of language models.
MetricsRow eval_row(const std::string& prefix, const EvalResult& result);
// "eval_f1_class" and the class that `eval_f1` is of; none where there is no such figure.
std::optional<std::pair<std::string, std::string>> f1_class(const std::string& prefix,
                                                            const EvalResult& result);
// The figures, without the prefix, that eval_row() can give for the task.
std::vector<std::string> eval_figures(const Task& task);
// "eval_loss 1.2345  eval_accuracy 0.9180  (5,000 images)".
std::string eval_text(const std::string& prefix, const EvalResult& result, const std::string& unit);

// By their prefixes: `eval`, and Task::test_prefix.
using Evaluations = std::vector<std::pair<std::string, EvalResult>>;

struct Evaluation {
  Evaluations results;                // of the validation set, and of a second one (MultiNLI)
  std::string unit;                   // what was counted
  std::vector<std::string> warnings;  // about the model's files, one line each
};

// Evaluates the model in --model_name_or_path on --validation_file, or on the files of GLUE that
// --task_name and --data_dir name. `console`: as above. Throws InputError.
Evaluation evaluate(const TrainConfig& config, Console* console = nullptr);

}  // namespace compact
