// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/cluster_rules.h"

#include <unicode/ubrk.h>
#include <unicode/utext.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "compact/base/check.h"
#include "compact/data/tokenizers/hf_characters.h"

namespace compact {
namespace {

struct CloseIterator {
  void operator()(UBreakIterator* iterator) const { ubrk_close(iterator); }
};
struct CloseText {
  void operator()(UText* text) const { utext_close(text); }
};

constexpr size_t kLongestWhole = 5;  // bytes

// Whether what begins here joins what is before: marks of Unicode 16 and 17, newer than ICU.
bool begins_with_new_mark(std::string_view text) {
  size_t end = 0;
  const char32_t c = text.empty() ? 0 : next_character(text, end);
  return c == 0x897 || (c >= 0x1ACF && c <= 0x1ADD) || (c >= 0x1AE0 && c <= 0x1AEB);
}

}  // namespace

ClusterRules::ClusterRules(std::string_view rules) {
  if (rules.empty()) return;
  uint32_t length = 0;
  std::memcpy(&length, rules.data(), 4);
  units_.resize(length / 4);
  std::memcpy(units_.data(), rules.data() + 4, length);
  replacements_ = rules.substr(4 + length);
}

const char* ClusterRules::replacement(std::string_view text) const {
  const auto base = [](uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); };
  size_t at = base(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) return nullptr;
    at ^= byte;
    const uint32_t unit = units_[at];
    if ((unit & 0x800000FF) != byte) return nullptr;
    at ^= base(unit);
    if ((unit >> 8 & 1) != 0) return replacements_.c_str() + (units_[at] & 0x7FFFFFFF);
  }
  return nullptr;
}

void ClusterRules::apply(std::string_view cluster, std::string& out) const {
  if (cluster.size() <= kLongestWhole) {
    if (const char* const whole = replacement(cluster)) {
      out += whole;
      return;
    }
  }
  for (size_t i = 0; i < cluster.size();) {
    const size_t at = i;
    next_character(cluster, i);
    const std::string_view character = cluster.substr(at, i - at);
    const char* const other = replacement(character);
    out += other ? std::string_view(other) : character;
  }
}

std::string ClusterRules::applied(std::string_view text) const {
  if (units_.empty()) return std::string(text);
  std::string out;
  out.reserve(text.size());
  UErrorCode error = U_ZERO_ERROR;
  const std::unique_ptr<UText, CloseText> units(
      utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &error));
  const std::unique_ptr<UBreakIterator, CloseIterator> clusters(
      ubrk_open(UBRK_CHARACTER, "", nullptr, 0, &error));
  if (U_SUCCESS(error)) ubrk_setUText(clusters.get(), units.get(), &error);
  COMPACT_CHECK(U_SUCCESS(error), "[sentencepiece] ICU: ", u_errorName(error));
  size_t from = 0;
  for (int32_t to = ubrk_next(clusters.get()); to != UBRK_DONE; to = ubrk_next(clusters.get())) {
    const auto end = static_cast<size_t>(to);
    if (begins_with_new_mark(text.substr(end))) continue;
    apply(text.substr(from, end - from), out);
    from = end;
  }
  return out;
}

}  // namespace compact
