// SPDX-License-Identifier: Apache-2.0
// Classes or values of sentences or pairs of sentences, with an encoder.
#include "compact/base/check.h"
#include "compact/tasks/sequence_task.h"
#include "compact/tasks/task_model.h"

namespace compact {
namespace {

void check_text(const TrainConfig& c) {
  for (const auto* files : {&c.train_file, &c.validation_file, &c.test_file}) {
    COMPACT_CHECK(files->size() <= 1,
                  "--task text-classification takes one file of each kind, not ", files->size());
  }
}

Task open_text(const TrainConfig& c, const Opening& opening, std::vector<std::string>& warnings) {
  SequenceTexts texts;
  bool regression = c.do_regression;
  std::vector<std::string> known;  // classes
  std::optional<bool> pair;        // whether the model was trained on pairs; none: not known
  if (opening.only_evaluates) {
    const ModelShape trained = model_of(c)->shape();
    regression = regression || trained.regression;
    pair = trained_on_pairs(c);
    if (!trained.regression) known = trained.labels;
  }
  TextFields fields{.first = c.text_column,
                    .second = c.text_pair_column,
                    .pair = pair,
                    .label = c.label_column,
                    .regression = regression,
                    .class_names = known,
                    .strict = c.strict};
  const auto read = [&](const std::vector<std::string>& files, std::optional<LabelledTexts>& to) {
    if (!files.empty()) to = read_labelled_texts(files[0], fields);
  };
  read(c.train_file, texts.train);
  if (texts.train) {
    fields.class_names = texts.train->class_names;
    fields.pair = !texts.train->second.empty();
  }
  read(c.validation_file, texts.validation);
  read(c.test_file, texts.test);
  std::vector<std::string> metrics = {"accuracy", "matthews_correlation"};
  if (fields.class_names.size() == 2) metrics.insert(metrics.begin() + 1, "f1");
  if (regression) metrics = {"pearson", "spearmanr"};
  return open_sequences(c, opening, std::move(texts), std::move(metrics), warnings);
}

}  // namespace

extern const TaskInfo text_classification = {
    .name = "text-classification",
    .summary = "classes or values of sentences, by an encoder",
    .check = check_text,
    .open = open_text,
    .use = ModelUse::kSequences,
};

}  // namespace compact
