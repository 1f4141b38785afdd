// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/nfc.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <limits>

#include "compact/base/check.h"

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
  composer().normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())),
                           sink, nullptr, error);
  COMPACT_CHECK(U_SUCCESS(error), "[nfc] ICU: ", u_errorName(error));
  return result;
}

}  // namespace compact
