// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/nfc.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "compact/base/check.h"
#include "compact/data/tokenizers/hf_characters.h"

namespace compact {
namespace {

const icu::Normalizer2& composer() {
  static const auto* const all = [] {
    UErrorCode error = U_ZERO_ERROR;
    const icu::Normalizer2* const whole = icu::Normalizer2::getNFCInstance(error);
    auto* const known = new icu::UnicodeSet(icu::UnicodeString("[:age=9.0:]"), error);
    COMPACT_CHECK(U_SUCCESS(error), "[nfc] ICU: ", u_errorName(error));
    known->freeze();
    return new icu::FilteredNormalizer2(*whole, *known);
  }();
  return *all;
}

// Marks after a character in canonical order. ICU goes back over all of them for each that is not.
std::string in_order(std::string_view text) {
  std::string out;
  std::vector<std::pair<int, char32_t>> marks;
  const auto flush = [&] {
    std::ranges::stable_sort(marks, {}, &std::pair<int, char32_t>::first);
    for (const auto& mark : marks) append_character(out, mark.second);
    marks.clear();
  };
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    const char32_t c = next_character(text, i);
    if (const int order = c < 0x300 ? 0 : combining_class(c); order != 0) {
      marks.emplace_back(order, c);
      continue;
    }
    flush();
    out += text.substr(at, i - at);
  }
  flush();
  return out;
}

}  // namespace

std::string nfc(std::string_view text) {
  if (std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    return std::string(text);
  }
  COMPACT_CHECK(text.size() <= std::numeric_limits<int32_t>::max(), "[nfc] a text of ", text.size(),
                " bytes is too long");
  std::string result;
  icu::StringByteSink<std::string> sink(&result, static_cast<int32_t>(text.size()));
  UErrorCode error = U_ZERO_ERROR;
  const std::string ordered = in_order(text);
  composer().normalizeUTF8(0,
                           icu::StringPiece(ordered.data(), static_cast<int32_t>(ordered.size())),
                           sink, nullptr, error);
  COMPACT_CHECK(U_SUCCESS(error), "[nfc] ICU: ", u_errorName(error));
  return result;
}

}  // namespace compact
