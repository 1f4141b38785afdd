// SPDX-License-Identifier: Apache-2.0
// The tasks of GLUE (Wang et al. 2019) in the layout of its downloads. What counts as a row and the
// numbers of classes are those of Hugging Face's data set `glue`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compact/data/text/labelled_texts.h"

namespace compact {

struct GlueTask {
  std::string name, folder;  // as in "sst2" and "SST-2"
  // Columns by their header; `second` is empty where sentences are single.
  std::string first, second, label;
  std::vector<std::string> class_names;           // empty: regression
  std::vector<std::string> metrics;               // by the names of named_score() in base/scores.h
  std::vector<std::string> validation = {"dev"};  // the files to validate on: dev.tsv
};

std::span<const GlueTask> glue_tasks();
// Throws InputError, with a suggestion, where there is none of that name.
const GlueTask& glue_task(std::string_view name);

// The rows of SPLIT.tsv, perhaps compressed, in `folder` or in the task's folder inside of it.
// `split` is train, one of the task's `validation`, or test (test_matched, ...), whose labels are
// NaN. Paraphrases (mrpc) may also be in the files of the original corpus, msr_paraphrase_train.txt
// and msr_paraphrase_test.txt, which is then both dev and test, with a warning. Rows without a
// sentence or a label are skipped with a warning (qqp has a few). Throws InputError.
LabelledTexts read_glue(const GlueTask& task, const std::string& folder, const std::string& split);

}  // namespace compact
