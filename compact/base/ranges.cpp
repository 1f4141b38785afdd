// SPDX-License-Identifier: Apache-2.0
#include "compact/base/ranges.h"

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

// A number without leading zeros, as names have it: not "07".
std::optional<int64_t> number_of(std::string_view text) {
  if (text.size() > kMostRangeDigits || text.find_first_not_of("0123456789") != text.npos ||
      (text.size() > 1 && text[0] == '0')) {
    return std::nullopt;
  }
  return parse_integer(text);
}

}  // namespace

std::optional<NumberRange> parse_range(std::string_view text) {
  const size_t dots = text.find("..");
  if (dots == text.npos) return std::nullopt;
  const auto first = number_of(text.substr(0, dots)), last = number_of(text.substr(dots + 2));
  if (!first || !last || *first > *last) return std::nullopt;
  return NumberRange{*first, *last};
}

void check_ranges(std::string_view pattern, const std::string& where) {
  for (size_t open = pattern.find('{'); open != pattern.npos; open = pattern.find('{', open + 1)) {
    const size_t close = pattern.find('}', open);
    if (close == pattern.npos) return;
    for (const std::string& part : split(pattern.substr(open + 1, close - open - 1), ',')) {
      COMPACT_CHECK(part.find("..") == part.npos || parse_range(part), where, ": `{", part,
                    "}` in `", pattern,
                    "`: a range is {FIRST..LAST}, two whole numbers, the first at most the last");
    }
    open = close;
  }
}

std::string braced(std::span<const std::string> names) {
  std::string all;
  size_t parts = 0;
  for (size_t i = 0; i < names.size(); ++parts) {
    size_t end = i + 1;
    const auto first = number_of(names[i]);
    while (first && end < names.size() &&
           number_of(names[end]) == *first + static_cast<int64_t>(end - i)) {
      ++end;
    }
    if (end - i < 3) end = i + 1;
    all += cat(i ? "," : "", names[i], end > i + 1 ? ".." + names[end - 1] : "");
    parts += end > i + 1;  // a range needs braces
    i = end;
  }
  return parts > 1 ? "{" + all + "}" : all;
}

}  // namespace compact
