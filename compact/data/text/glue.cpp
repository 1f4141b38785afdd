// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/glue.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/named.h"

namespace compact {
namespace {

const std::vector<std::string> kEntails = {"entailment", "not_entailment"};

// The file of that name in the folder, perhaps compressed; empty where there is none.
std::string find_file(const std::string& folder, const std::string& name) {
  for (const char* ending : {"", ".gz", ".xz", ".zst"}) {
    const std::string path = folder + "/" + name + ending;
    if (is_file(path)) return path;
  }
  return {};
}

}  // namespace

std::span<const GlueTask> glue_tasks() {
  static const std::vector<GlueTask> tasks = {
      {"cola",
       "CoLA",
       "sentence",
       "",
       "label",
       {"unacceptable", "acceptable"},
       {"matthews_correlation"}},
      {"sst2", "SST-2", "sentence", "", "label", {"negative", "positive"}, {"accuracy"}},
      {"mrpc",
       "MRPC",
       "#1 String",
       "#2 String",
       "Quality",
       {"not_equivalent", "equivalent"},
       {"accuracy", "f1"}},
      {"qqp",
       "QQP",
       "question1",
       "question2",
       "is_duplicate",
       {"not_duplicate", "duplicate"},
       {"accuracy", "f1"}},
      {"stsb", "STS-B", "sentence1", "sentence2", "score", {}, {"pearson", "spearmanr"}},
      {"mnli",
       "MNLI",
       "sentence1",
       "sentence2",
       "gold_label",
       {"entailment", "neutral", "contradiction"},
       {"accuracy"},
       {"dev_matched", "dev_mismatched"}},
      {"qnli", "QNLI", "question", "sentence", "label", kEntails, {"accuracy"}},
      {"rte", "RTE", "sentence1", "sentence2", "label", kEntails, {"accuracy"}},
      {"wnli",
       "WNLI",
       "sentence1",
       "sentence2",
       "label",
       {"not_entailment", "entailment"},
       {"accuracy"}},
  };
  return tasks;
}

const GlueTask& glue_task(std::string_view name) {
  return named(glue_tasks(), name, "--task_name must be a task of GLUE, is");
}

LabelledTexts read_glue(const GlueTask& task, const std::string& folder, const std::string& split) {
  std::vector<std::string> splits = {"train"};
  for (const std::string& name : task.validation) splits.push_back(name);
  for (const std::string& name : task.validation) splits.push_back("test" + name.substr(3));
  COMPACT_CHECK(std::find(splits.begin(), splits.end(), split) != splits.end(), task.name,
                " has no part `", split, "`", suggestion(split, splits));
  COMPACT_CHECK(is_folder(folder), folder, ": must be the folder of GLUE's files");

  const bool test = split.starts_with("test"), original = task.name == "mrpc";
  std::string path, warning;
  for (const std::string& place : {folder, folder + "/" + task.folder}) {
    if (path.empty()) path = find_file(place, split + ".tsv");
  }
  for (const std::string& place : {folder, folder + "/" + task.folder}) {
    if (!path.empty() || !original) continue;
    path =
        find_file(place, split == "train" ? "msr_paraphrase_train.txt" : "msr_paraphrase_test.txt");
    if (split == "dev" && !path.empty()) {
      warning = path + ": stands in for dev.tsv, which has other pairs; figures are not GLUE's";
    }
  }
  COMPACT_CHECK(!path.empty(), folder, ": has no ", split, ".tsv",
                original ? " and no msr_paraphrase_*.txt" : "", ", nor has ", folder, "/",
                task.folder);

  // CoLA's files for training are the only ones without a header.
  const bool header = task.name != "cola" || test;
  const auto table =
      open_table(path, {.header = header, .ragged = header, .tsv = true, .strict = false});
  std::vector<std::string> columns = {header ? task.first : "3"};
  if (!task.second.empty()) columns.push_back(task.second);
  if (!test) columns.push_back(header ? task.label : "1");
  table->choose(columns);
  LabelledTexts texts = read_rows(*table, {.pair = !task.second.empty(),
                                           .label = !test,
                                           .regression = task.class_names.empty(),
                                           .class_names = task.class_names,
                                           .numbered = true,
                                           .skip_broken = header});
  texts.class_names = task.class_names;
  if (!warning.empty()) texts.warnings.push_back(warning);
  return texts;
}

}  // namespace compact
