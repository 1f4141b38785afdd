// SPDX-License-Identifier: Apache-2.0
// A text file of numbers: lines of fields with spaces, tabs or commas between them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace compact {

class FieldLines {
 public:
  // Reads the file, perhaps compressed (byte_source.h), of at most 512 MiB of text. White space at
  // its end is no line. Throws InputError.
  explicit FieldLines(const std::string& path);
  FieldLines(const FieldLines&) = delete;

  // Goes to the next line; false after the last.
  bool next();
  // "PATH: line 3", to begin a message.
  std::string where() const;

  bool more();  // whether the line has another field
  // The next field; InputError where there is none, or it is no number from low to high.
  int64_t integer(std::string_view what, int64_t low = std::numeric_limits<int64_t>::min(),
                  int64_t high = std::numeric_limits<int64_t>::max());
  float real(std::string_view what);  // finite
  void end();                         // InputError where the line has another field

 private:
  std::string_view field(std::string_view what);

  std::string path_, text_;
  std::string_view rest_, line_;  // what follows the line, and its fields not taken
  int64_t number_ = 0;
};

}  // namespace compact
