// SPDX-License-Identifier: Apache-2.0
// Ranges of numbers in the braces of a pattern: layers.{0..13}.mlp.*, layers.{0..3,7}.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace compact {

inline constexpr size_t kMostRangeDigits = 18;
struct NumberRange {
  int64_t first = 0, last = 0;  // both included
};
// "0..13": whole numbers of at most so many digits without leading zeros, the first at most the
// last; nullopt on anything else.
std::optional<NumberRange> parse_range(std::string_view text);

// Throws InputError, which begins with `where`, if a pattern has two dots in braces that are not a
// range.
void check_ranges(std::string_view pattern, const std::string& where);

// One name as it is, several as {a,b}; three or more consecutive numbers as a range: {0..3,7}.
std::string braced(std::span<const std::string> names);

}  // namespace compact
