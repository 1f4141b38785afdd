// SPDX-License-Identifier: Apache-2.0
// Texts, or pairs of texts, with a class or a value each, out of .csv, .tsv and .jsonl files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compact/data/text/text_table.h"

namespace compact {

struct LabelledTexts {
  std::vector<std::string> first, second;  // second is empty where texts are single
  std::vector<float> labels;               // a class's number, or a value; NaN: none
  std::vector<std::string> class_names;    // empty: values (regression)
  std::vector<std::string> warnings = {};  // about the file, one line each
};

// Which fields of a file are what.
struct TextFields {
  std::string first;              // empty: the first of sentence1, sentence, text that there is
  std::string second;             // empty: sentence2 where there is one
  std::optional<bool> pair = {};  // whether there must be a second one; none: as the file has it
  std::string label = "label";
  bool regression = false;                    // labels are finite numbers, not classes
  bool need_labels = true;                    // otherwise a file without them gives NaN
  std::vector<std::string> class_names = {};  // empty: those of the file
  bool strict = true;  // a row that cannot be read is an error; else a warning counts such
};

// A .csv or .tsv file with a header, or a .jsonl file. Classes are texts or integers: those given,
// or the distinct ones of the file (at least two), sorted as numbers where all are integers,
// otherwise by bytes. Rows of a class -1 beside three or more that are numbers from 0 on, or that
// are given, have no label: they are left out, and a warning says how many. Throws InputError with
// path, line and rule: also on a class that is none of those given.
LabelledTexts read_labelled_texts(const std::string& path, const TextFields& fields = {});

// The rules by which read_rows() reads a table, for readers of other layouts.
struct RowRules {
  bool pair = false, label = true;  // the chosen columns are the first, [second], [label]
  bool regression = false;
  std::vector<std::string> class_names = {};  // empty: those of the file
  bool numbered = false;     // a label may also be the number of one of class_names, from 0
  bool skip_broken = false;  // rows that lack a text or the label are counted and left out
  bool strict = true;        // the same of rows that cannot be read, unless they are an error
};
// Every row of a table whose columns are chosen; at most 4 GiB in memory.
LabelledTexts read_rows(TextTable& table, const RowRules& rules);

}  // namespace compact
