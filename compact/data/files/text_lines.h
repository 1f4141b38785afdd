// SPDX-License-Identifier: Apache-2.0
// The lines of a text file, perhaps compressed (byte_source.h), one at a time: ends of lines are LF
// or CRLF, a byte order mark before the first is dropped, invalid UTF-8 becomes U+FFFD.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compact/data/files/byte_source.h"

namespace compact {

class TextLines {
 public:
  // Throws InputError where the path is no regular, non-empty file.
  explicit TextLines(const std::string& path);

  // Goes to the next line; false after the last. Throws InputError with path and line where it is
  // longer than 64 MiB or the file is UTF-16, OddOne where it has a NUL byte, which line() holds.
  bool next();
  std::string_view line() const { return line_; }  // until the next call of next()
  bool carriage() const { return carriage_; }      // whether CR and LF ended it, not LF
  // "PATH: line 3", to begin a message.
  std::string where() const;

  const std::string& path() const { return path_; }
  int64_t replaced() const { return replaced_; }  // U+FFFD put in so far

 private:
  bool fill();

  std::string path_;
  std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;  // what waits in buffer_
  std::string raw_, line_;
  bool carriage_ = false;
  int64_t number_ = 0, replaced_ = 0;
};

}  // namespace compact
