// SPDX-License-Identifier: Apache-2.0
// The records of a .csv file as RFC 4180 has them, perhaps compressed (byte_source.h), in constant
// memory: commas end fields; a field in quotes may hold commas, ends of lines, which stay as they
// are, and quotes, doubled. Empty lines between records are skipped; a byte order mark is dropped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compact/data/files/text_lines.h"

namespace compact {

class CsvRecords {
 public:
  // Keeps the first `most` fields of a record. Throws InputError where the path is no regular,
  // non-empty file.
  CsvRecords(const std::string& path, size_t most) : lines_(path), fields_(most) {}

  // Goes to the next record; false after the last. Refuses a NUL, a quote in a field that does not
  // begin with one, and what follows a closing quote but a comma or the line's end. Throws
  // InputError on a quote that never closes, and on records of more than 64 MiB.
  bool next();
  // How many fields the record has, and the first of them; until the next call of next().
  size_t count() const { return count_; }
  std::string_view field(size_t i) const { return fields_[i]; }

  // Throws OddOne, after which the next record can be read; InputError where the record has gone on
  // beyond its first line: perhaps a quote there is not closed, and rows are within it.
  [[noreturn]] void refuse(const std::string& message) const;

  // "PATH: line 3", where the record begins.
  const std::string& where() const { return where_; }
  int64_t replaced() const { return lines_.replaced(); }  // places of invalid UTF-8 so far

 private:
  // Reads the rest of a field in quotes from line_[at, ...) on; returns the place after it.
  size_t quoted(size_t at, std::string& field);
  void next_line();

  TextLines lines_;
  std::vector<std::string> fields_;
  std::string unseen_, where_;
  std::string_view line_;
  size_t count_ = 0, size_ = 0;  // of fields, of bytes
};

}  // namespace compact
