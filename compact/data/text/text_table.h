// SPDX-License-Identifier: Apache-2.0
// Rows of chosen columns out of a file of texts, perhaps compressed, in constant memory. Blank
// lines are skipped. `.csv`: records as RFC 4180 has them. `.tsv`: lines; a field may be in quotes
// as pandas writes it, over lines where the first lacks columns, and other quotes are characters.
// `.jsonl`: an object a line, whose fields are strings or numbers.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compact/data/files/replaced.h"

namespace compact {

struct TableCell {
  enum Kind { kMissing, kText, kNumber };  // what a .tsv or .csv holds is text
  Kind kind = kMissing;                    // missing: the row has no such column, or null
  std::string text = {};                   // a number as decimal text
};

struct TableForm {
  bool header = true;   // not .jsonl: the first row names the columns; otherwise they are 0, 1, ...
  bool ragged = false;  // the same: rows may have fewer columns (missing) or more (not looked at)
  bool tsv = false;     // it is a .tsv whatever its name, and all quotes are plain characters
  // Rows with invalid UTF-8, and in .jsonl with halves of pairs of surrogates, are odd; otherwise
  // these become U+FFFD.
  bool strict = true;
};

class TextTable {
 public:
  virtual ~TextTable() = default;

  // The names of the columns; in a .jsonl file the keys of the first object, 64 of them at most.
  const std::vector<std::string>& names() const { return names_; }
  bool has(const std::string& name) const;
  // The columns that next() gives, in this order. Throws InputError, with a suggestion, where
  // names() lacks one, or has it twice.
  void choose(const std::vector<std::string>& names);

  // Adds a last column to next() where a row may have it: in a .jsonl file any row may. Returns
  // false, and adds none, where no row has it.
  virtual bool choose_also(const std::string& name);

  // Makes it an error if a later row of a .jsonl file has this field, which the first lacks.
  void refuse(const std::string& name) { refused_ = name; }

  // Whether cells have types, so that a text of digits is not a number.
  virtual bool typed() const { return false; }

  // The next row's cells; false after the last. Throws OddOne with path, line and rule on a broken
  // row, after which the next one can be read, and InputError where no further row can be read.
  virtual bool next(std::vector<TableCell>& cells) = 0;
  // "PATH: line 3", to begin a message about the row.
  virtual std::string where() const = 0;
  const Replaced& replaced() const { return replaced_; }  // in the rows so far
  const std::string& path() const { return path_; }

 protected:
  explicit TextTable(std::string path) : path_(std::move(path)) {}
  // Takes the first error out of odd_ and throws it.
  void say_odd();
  // Notes what was replaced in the row, of `now` places so far.
  void note_replaced(int64_t now) { replaced_.add(now - std::exchange(noted_, now), where()); }

  std::string path_;
  std::vector<std::string> names_, chosen_;
  std::string refused_;
  std::vector<std::string> odd_;  // what was wrong with rows that were met before the first
  std::vector<size_t> columns_;   // of chosen_, in names_
  bool first_ = true;             // the first row waits to be given

 private:
  Replaced replaced_;
  int64_t noted_ = 0;
};

// Throws InputError with the path where the name is not .csv, .tsv or .jsonl, perhaps with .gz, .xz
// or .zst, and where the file is missing, empty, or ends before its first row.
std::unique_ptr<TextTable> open_table(const std::string& path, TableForm form = {});

}  // namespace compact
