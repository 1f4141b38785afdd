// SPDX-License-Identifier: Apache-2.0
// The tasks of GLUE with an encoder.
#include "compact/base/check.h"
#include "compact/data/text/glue.h"
#include "compact/tasks/sequence_task.h"

namespace compact {
namespace {

void check_glue(const TrainConfig& c) {
  glue_task(c.task_name);
  COMPACT_CHECK(c.train_file.empty() && c.validation_file.empty() && c.test_file.empty(),
                "--task glue takes its files from --data_dir; for others there is --task "
                "text-classification");
}

Task open_glue(const TrainConfig& c, const Opening& opening, std::vector<std::string>& warnings) {
  const GlueTask& glue = glue_task(c.task_name);
  SequenceTexts texts;
  if (!c.data_dir.empty()) {
    if (!opening.only_evaluates) texts.train = read_glue(glue, c.data_dir, "train");
    texts.validation = read_glue(glue, c.data_dir, glue.validation[0]);
    // MultiNLI's second validation set.
    if (glue.validation.size() > 1) texts.test = read_glue(glue, c.data_dir, glue.validation[1]);
  }
  texts.positive = 1;  // equivalent, duplicate
  const bool measured = opening.only_evaluates && texts.validation;
  const bool pairs = measured && !texts.validation->second.empty();
  Task task = open_sequences(c, opening, std::move(texts), glue.metrics, warnings);
  COMPACT_CHECK(!measured || trained_on_pairs(c).value_or(pairs) == pairs, "--task_name ",
                c.task_name, ": has ", pairs ? "pairs of texts" : "single texts", ", ",
                c.model_name_or_path, " was trained on ", pairs ? "single texts" : "pairs");
  if (task.test) task.test_prefix = "eval_mismatched";
  return task;
}

}  // namespace

extern const TaskInfo glue = {
    .name = "glue",
    .summary = "a task of GLUE (--task_name), by an encoder",
    .check = check_glue,
    .open = open_glue,
    .use = ModelUse::kSequences,
};

}  // namespace compact
