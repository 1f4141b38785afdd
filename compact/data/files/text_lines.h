// SPDX-License-Identifier: Apache-2.0
// A text file, perhaps compressed (byte_source.h), in blocks or lines: ends of lines are LF or
// CRLF, a byte order mark at its beginning is dropped, invalid UTF-8 in a line becomes U+FFFD.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compact/data/files/byte_source.h"

namespace compact {

struct TextRules {
  size_t longest = size_t{1} << 26;            // bytes of a line
  enum { kOdd, kReplaced, kKept } nul = kOdd;  // of lines and blocks: replaced by U+FFFD
  bool strict = false;                         // invalid UTF-8 in a line is odd, not replaced
  // Called with every block of the file as it is read, the last is empty; may throw.
  std::function<void(std::string_view block)> watch = {};
};

class TextLines {
 public:
  // Throws InputError where the path is not a regular, non-empty file.
  explicit TextLines(const std::string& path, TextRules rules = {});

  // Goes to the next line; false after the last. Throws InputError with path and line where it is
  // too long or the file is UTF-16, and OddOne where something in it is odd; line() holds it.
  bool next();
  std::string_view line() const { return line_; }  // until the next call of next() or block()
  bool carriage() const { return carriage_; }      // whether CR and LF ended it, not LF
  // "PATH: line 3", or "PATH" before the first line, to begin a message.
  std::string where() const;

  // Some of what follows, its UTF-8 as it is; empty at the file's end.
  std::string_view block();

  const std::string& path() const { return path_; }
  int64_t replaced() const { return replaced_; }  // U+FFFD put in so far
  // Bytes read so far: of the text, but for the block that is being watched, and of the file.
  int64_t bytes() const { return bytes_; }
  int64_t consumed() const { return source_->consumed(); }

 private:
  bool fill();

  std::string path_;
  TextRules rules_;
  std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  std::string_view waiting_;  // in buffer_
  size_t mark_ = 0;           // bytes of the byte order mark that was skipped
  std::string raw_, line_;
  bool carriage_ = false;
  int64_t number_ = 0, replaced_ = 0, bytes_ = 0;
};

}  // namespace compact
