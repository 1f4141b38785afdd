// SPDX-License-Identifier: Apache-2.0
// A text file of numbers: lines of fields with spaces, tabs or commas between them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "compact/data/files/text_lines.h"

namespace compact {

class FieldLines {
 public:
  // Reads the file, perhaps compressed (byte_source.h), of at most 512 MiB of text. White space at
  // its end is not a line. Throws InputError.
  explicit FieldLines(const std::string& path);
  FieldLines(const FieldLines&) = delete;

  // Goes to the next line; false after the last.
  bool next();
  // "PATH: line 3", to begin a message.
  std::string where() const;

  bool more();  // whether the line has another field
  // The next field; InputError where there is none, or it is not a number from low to high.
  int64_t integer(std::string_view what, int64_t low = std::numeric_limits<int64_t>::min(),
                  int64_t high = std::numeric_limits<int64_t>::max());
  float real(std::string_view what);  // finite
  void end();                         // InputError where the line has another field

 private:
  std::string_view field(std::string_view what);
  // Goes to the next line that is not blank, where it is not there; false: there is none.
  bool find();

  TextLines lines_;
  bool found_ = false;
  int64_t blanks_ = 0, number_ = 0;  // lines before the one that was found
  std::string_view line_;            // its fields not taken
};

}  // namespace compact
