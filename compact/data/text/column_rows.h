// SPDX-License-Identifier: Apache-2.0
// The rows of a file of columns, perhaps compressed (byte_source.h), in constant memory. Empty
// lines between rows are skipped.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compact/data/files/odd_ones.h"
#include "compact/data/files/text_lines.h"

namespace compact {

inline constexpr size_t kMostColumns = 1000;  // whose fields are kept

class ColumnRows {
 public:
  // Throws InputError where the path is no regular, non-empty file.
  explicit ColumnRows(const std::string& path) : lines_(path), fields_(kMostColumns) {}
  virtual ~ColumnRows() = default;

  // Goes to the next row; false after the last. Throws OddOne on a row that is none, after which
  // the next can be read, and InputError on what ends the file.
  virtual bool next() = 0;
  // How many fields the row has, and the first of them; until the next call of next().
  size_t count() const { return count_; }
  std::string_view field(size_t i) const { return fields_[i]; }
  // Throws OddOne, or InputError where the next row cannot be read.
  [[noreturn]] virtual void refuse(const std::string& message) const { throw OddOne(message); }
  // "PATH: line 3", where the row begins.
  virtual std::string where() const { return lines_.where(); }
  int64_t replaced() const { return lines_.replaced(); }  // places of invalid UTF-8 so far

 protected:
  bool next_line() {
    while (lines_.next()) {
      if (!lines_.line().empty()) return true;
    }
    return false;
  }
  // The next field of the row, empty.
  std::string& add() {
    std::string& field = count_ < fields_.size() ? fields_[count_] : unseen_;
    ++count_;
    field.clear();
    return field;
  }

  TextLines lines_;
  size_t count_ = 0;

 private:
  std::vector<std::string> fields_;
  std::string unseen_;
};

// A .csv file as RFC 4180 has it: commas end fields; a field in quotes may hold commas, ends of
// lines, which stay as they are, and quotes, doubled. Refuses a NUL, a quote in a field that does
// not begin with one, what follows a closing quote but a comma or the line's end, a quote that
// never closes, and records of more than 64 MiB.
std::unique_ptr<ColumnRows> csv_rows(const std::string& path);

// A .tsv file: tabs end fields. A field may stand in quotes as a whole, its own doubled, as pandas
// writes those with tabs or quotes; other quotes are plain characters, with `plain` all are.
std::unique_ptr<ColumnRows> tsv_rows(const std::string& path, bool plain);

}  // namespace compact
