// SPDX-License-Identifier: Apache-2.0
// Text out of a file as a message may show it: on one line, without control characters, not long.
#pragma once

#include <string>
#include <string_view>

namespace compact {

inline std::string printable(std::string_view text) {
  constexpr size_t kMost = 120;
  std::string out(text.substr(0, kMost));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (text.size() > kMost) out += "...";
  return out;
}

}  // namespace compact
