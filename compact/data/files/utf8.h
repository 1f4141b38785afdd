// SPDX-License-Identifier: Apache-2.0
// Makes text well-formed UTF-8 while it streams past: each maximal ill-formed part becomes U+FFFD,
// as the Unicode standard (chapter 3.9) and the WHATWG decoder do it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace compact {

class Utf8Repair {
 public:
  // Appends `text`, repaired, to `out`. A sequence cut off at the end waits for the next call.
  void feed(std::string_view text, std::string& out);
  // The text ends here: a sequence still waiting becomes U+FFFD.
  void finish(std::string& out);
  // How many replacements were made.
  int64_t replaced() const { return replaced_; }

 private:
  void byte(unsigned char b, std::string& out);
  void replace(std::string& out);

  std::string pending_;                     // the start of a sequence
  int missing_ = 0;                         // continuation bytes it still needs
  unsigned char low_ = 0x80, high_ = 0xBF;  // what the next one may be
  int64_t replaced_ = 0;
};

// `text` with U+FFFD for every NUL, and how many there were.
int64_t replace_nuls(std::string& text);

// Throws InputError with the path where the file's first block begins with UTF-16's mark.
void refuse_utf16(const std::string& path, std::string_view block);

// All of `text`, repaired.
std::string repaired_utf8(std::string_view text);

}  // namespace compact
