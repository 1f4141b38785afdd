// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/pattern.h"

#include <unicode/uregex.h>
#include <unicode/ustring.h>
#include <unicode/utf16.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/data/files/printable.h"
#include "compact/data/tokenizers/hf_characters.h"

namespace compact {
namespace {

constexpr size_t kLongestExpression = 1 << 16;
constexpr int32_t kTimeLimit = 20000;             // of one match, about milliseconds
constexpr int32_t kStackLimit = 64 << 20;         // bytes, of one match
constexpr size_t kLongestText = size_t{1} << 29;  // bytes; ICU counts in 32 bits

// Refuses syntax that Oniguruma reads in another way than ICU, or not at all.
void check_dialect(std::string_view text, const std::string& where) {
  const auto refuse = [&](std::string_view what) {
    fail(where, ": the expression `", printable(text), "` uses `", printable(what),
         "`, which is not known here");
  };
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '\\') {
      const char c = text[++i];
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if ((letter && std::string_view("pPsSrntfdD").find(c) == std::string_view::npos) ||
          (c >= '0' && c <= '9')) {
        refuse(text.substr(i - 1, 2));
      }
      if ((c == 'p' || c == 'P') && i + 1 < text.size() && text[i + 1] == '{') {
        i = std::min(text.find('}', i), text.size());
      }
      continue;
    }
    const std::string_view two = text.substr(i, 2);
    if (two == "}+" || two == "--" || two == "[:") refuse(two);
    if (two == "(?" && i + 2 < text.size() &&
        std::string_view(":=!<>i").find(text[i + 2]) == std::string_view::npos) {
      refuse(text.substr(i, 3));
    }
  }
}

std::u16string utf16(const std::string& text) {
  UErrorCode error = U_ZERO_ERROR;
  std::u16string units(text.size() + 1, u'\0');
  int32_t length = 0;
  u_strFromUTF8(units.data(), static_cast<int32_t>(units.size()), &length, text.data(),
                static_cast<int32_t>(text.size()), &error);
  units.resize(U_SUCCESS(error) ? static_cast<size_t>(length) : 0);
  return units;
}

}  // namespace

void Pattern::Close::operator()(URegularExpression* regex) const { uregex_close(regex); }

Pattern::Pattern(const std::string& expression, bool literal, const std::string& where)
    : expression_(expression), where_(where) {
  COMPACT_CHECK(!expression.empty() && expression.size() <= kLongestExpression, where,
                ": an expression must have 1 to ", kLongestExpression, " bytes, has ",
                expression.size());
  if (!literal) check_dialect(expression, where);
  const std::u16string units = utf16(literal ? expression : with_new_characters(expression));
  UParseError place{};
  UErrorCode error = U_ZERO_ERROR;
  regex_.reset(uregex_open(units.data(), static_cast<int32_t>(units.size()),
                           literal ? UREGEX_LITERAL : 0, &place, &error));
  COMPACT_CHECK(U_SUCCESS(error), where, ": `", printable(expression),
                "` must be a regular expression: ", u_errorName(error), " at character ",
                place.offset);
  uregex_setTimeLimit(regex_.get(), kTimeLimit, &error);
  uregex_setStackLimit(regex_.get(), kStackLimit, &error);
}

Pattern Pattern::clone() const {
  Pattern copy;
  UErrorCode error = U_ZERO_ERROR;
  copy.regex_.reset(uregex_clone(regex_.get(), &error));
  COMPACT_CHECK(U_SUCCESS(error), where_, ": cannot be copied: ", u_errorName(error));
  uregex_setTimeLimit(copy.regex_.get(), kTimeLimit, &error);
  uregex_setStackLimit(copy.regex_.get(), kStackLimit, &error);
  copy.expression_ = expression_;
  copy.where_ = where_;
  return copy;
}

void Pattern::split(std::string_view text,
                    FunctionRef<void(std::string_view, bool is_match)> part) {
  COMPACT_CHECK(text.size() <= kLongestText, where_,
                ": a text without added tokens must be at most ", kLongestText, " bytes, has ",
                text.size());
  units_.resize(text.size() + 1);
  size_t count = 0;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      units_[count++] = byte;
      ++i;
    } else {
      const char32_t c = next_character(text, i);
      U16_APPEND_UNSAFE(units_.data(), count, c);
    }
  }
  UErrorCode error = U_ZERO_ERROR;
  URegularExpression* const regex = regex_.get();
  uregex_setText(regex, units_.data(), static_cast<int32_t>(count), &error);
  size_t unit = 0, byte = 0, done = 0;  // the same place in units and in bytes; given out so far
  const auto bytes_at = [&](int32_t to) {
    for (; unit < static_cast<size_t>(to); ++unit) {
      const char16_t u = units_[unit];
      // A pair of surrogates is four bytes: two for each.
      byte += u < 0x80 ? 1 : u < 0x800 || U16_IS_SURROGATE(u) ? 2 : 3;
    }
    return byte;
  };
  while (uregex_findNext(regex, &error)) {
    const int32_t start = uregex_start(regex, 0, &error), end = uregex_end(regex, 0, &error);
    if (start == end) continue;
    const size_t from = bytes_at(start), to = bytes_at(end);
    if (done < from) part(text.substr(done, from - done), false);
    part(text.substr(from, to - from), true);
    done = to;
  }
  COMPACT_CHECK(U_SUCCESS(error), where_, ": `", printable(expression_),
                "` gives up on a text: ", u_errorName(error));
  if (done < text.size()) part(text.substr(done), false);
}

}  // namespace compact
