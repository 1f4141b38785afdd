// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/hf_characters.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/utf16.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <span>

namespace compact {
namespace {

struct Range {
  char32_t first, last;
};

// From the Unicode character database: letters of 15.1, 16.0 (and 17.0) that 15.0 lacks.
constexpr Range kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
    {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
    {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr Range kNewNumbers[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
                                 {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9},
                                 {0x1E5F1, 0x1E5FA}};
constexpr Range kNumbersOf17[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};
// Marks, and letters and numbers that stand between them.
constexpr Range kNewMarks[] = {{0x897, 0x897},     {0x10D69, 0x10D6D}, {0x10EFC, 0x10EFC},
                               {0x113B8, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5},
                               {0x113C7, 0x113CA}, {0x113CC, 0x113D3}, {0x113E1, 0x113E2},
                               {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F}, {0x1E5EE, 0x1E5EF}};

struct Pairs {  // upper case first ... last has its lower case at +delta, every `step`th
  char32_t first, last;
  int delta, step;
};
constexpr Pairs kNewLowerCase[] = {{0x1C89, 0x1C89, 1, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB, 1},
                                   {0xA7CC, 0xA7CE, 1, 2},      {0xA7D2, 0xA7D4, 1, 2},
                                   {0xA7DA, 0xA7DA, 1, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC, 1},
                                   {0x10D50, 0x10D65, 0x20, 1}, {0x16EA0, 0x16EB8, 0x1B, 1}};

bool contains(std::span<const Range> ranges, char32_t c) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const Range& r) { return c >= r.first && c <= r.last; });
}

uint32_t category(char32_t c) { return U_MASK(u_charType(static_cast<UChar32>(c))); }

// Whether `c` was assigned in that version of Unicode.
bool existed(char32_t c, int version) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] > 0 && (age[0] < version || (age[0] == version && age[1] == 0));
}

constexpr int kCategories = 8, kNormalization = 9;

const UNormalizer2* canonical() {
  UErrorCode error = U_ZERO_ERROR;
  return unorm2_getNFDInstance(&error);
}

}  // namespace

char32_t next_character(std::string_view text, size_t& i) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(text.data());
  UChar32 c;
  U8_NEXT_UNSAFE(bytes, i, c);
  return static_cast<char32_t>(c);
}

void append_character(std::string& text, char32_t c) {
  char bytes[4];
  size_t n = 0;
  U8_APPEND_UNSAFE(bytes, n, c);
  text.append(bytes, n);
}

bool is_space(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)); }

bool is_numeric(char32_t c) {
  if (category(c) & U_GC_N_MASK) return true;
  return c >= kNewNumbers[0].first && (contains(kNewNumbers, c) || contains(kNumbersOf17, c));
}

bool is_word_part(char32_t c) {
  const auto code = static_cast<UChar32>(c);
  return u_isUAlphabetic(code) || (category(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) ||
         u_hasBinaryProperty(code, UCHAR_JOIN_CONTROL) || contains(kNewLetters, c) ||
         contains(kNewNumbers, c) || contains(kNewMarks, c);
}

bool is_bert_other(char32_t c) {
  return (category(c) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) && existed(c, kCategories);
}

bool is_bert_mark(char32_t c) {
  // Characters whose category has changed since Unicode 8.0.
  if (c == 0x1734) return true;
  if (c == 0x1885 || c == 0x1886 || c == 0xA9BD || c == 0x111C9) return false;
  return (category(c) & U_GC_MN_MASK) && existed(c, kCategories);
}

bool is_bert_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
           (c >= 123 && c <= 126);
  if (c == 0x166D || c == 0x111C9) return true;  // these too
  return (category(c) & U_GC_P_MASK) && existed(c, kCategories);
}

char32_t lower_case(char32_t c) {
  for (const Pairs& p : kNewLowerCase) {
    if (c >= p.first && c <= p.last && (c - p.first) % static_cast<char32_t>(p.step) == 0) {
      return static_cast<char32_t>(static_cast<int>(c) + p.delta);
    }
  }
  return static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
}

std::u32string_view decomposed(char32_t c, char32_t (&buffer)[8]) {
  static const UNormalizer2* const kCanonical = canonical();
  UChar units[16];
  UErrorCode error = U_ZERO_ERROR;
  const int32_t n = unorm2_getDecomposition(kCanonical, static_cast<UChar32>(c), units,
                                            static_cast<int32_t>(std::size(units)), &error);
  if (n < 0 || U_FAILURE(error) || !existed(c, kNormalization)) {
    buffer[0] = c;
    return {buffer, 1};
  }
  size_t count = 0;
  for (int32_t i = 0; i < n && count < std::size(buffer);) {
    UChar32 part;
    U16_NEXT(units, i, n, part);
    buffer[count++] = static_cast<char32_t>(part);
  }
  return {buffer, count};
}

int combining_class(char32_t c) {
  const int value = u_getCombiningClass(static_cast<UChar32>(c));
  return value == 0 || existed(c, kNormalization) ? value : 0;
}

std::string with_new_characters(std::string_view pattern) {
  const auto set = [](const char* name, std::span<const Range> ranges) {
    std::string text = std::string("[\\p{") + name + "}";
    for (const Range& r : ranges) {
      char buffer[32];
      std::snprintf(buffer, sizeof buffer, "\\U%08X-\\U%08X", static_cast<unsigned>(r.first),
                    static_cast<unsigned>(r.last));
      text += buffer;
    }
    return text + "]";
  };
  std::string out;
  for (size_t i = 0; i < pattern.size();) {
    const std::string_view rest = pattern.substr(i);
    if (rest.starts_with("\\p{L}")) {
      out += set("L", kNewLetters);
      i += 5;
    } else if (rest.starts_with("\\p{N}")) {
      out += set("N", kNewNumbers);
      i += 5;
    } else {  // an escape whole, so that `\\p{L}` is a backslash and text
      const size_t n = rest[0] == '\\' && rest.size() > 1 ? 2 : 1;
      out += rest.substr(0, n);
      i += n;
    }
  }
  return out;
}

}  // namespace compact
