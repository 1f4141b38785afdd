// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/byte_alphabet.h"

#include <array>

#include "compact/data/tokenizers/hf_characters.h"

namespace compact {
namespace {

constexpr int kNoByte = -1;

// Byte by code point.
constexpr std::array<int, 0x180> make_table() {
  std::array<int, 0x180> table{};
  table.fill(kNoByte);
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool prints = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
    table[static_cast<size_t>(prints ? b : next++)] = b;
  }
  return table;
}

constexpr auto kBytes = make_table();

}  // namespace

std::optional<std::string> alphabet_bytes(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const char32_t c = next_character(token, i);
    if (c >= kBytes.size() || kBytes[c] == kNoByte) return std::nullopt;
    bytes.push_back(static_cast<char>(kBytes[c]));
  }
  return bytes;
}

}  // namespace compact
