// SPDX-License-Identifier: Apache-2.0
// Small text helpers: numbers, byte counts, glob patterns, suggestions for misspelt names.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace compact {

std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);

// ASCII letters become small.
std::string lower_case(std::string_view text);

// Whole-string numbers; nullopt on anything else. NaN and infinities are refused.
std::optional<double> parse_number(std::string_view text);
std::optional<int64_t> parse_integer(std::string_view text);

// "1.50 GiB", "12.0 KiB", "17 B".
std::string format_bytes(int64_t bytes);
// "10GiB" or "10Gi", "1.5 GB" or "1.5g", "4096": a positive number with a unit, as in Python's
// compact.plan, or whole bytes; nullopt on anything else.
std::optional<int64_t> parse_bytes(std::string_view text);
// "1h02m", "3m05s", "12s".
std::string format_duration(double seconds);
// 12345678 -> "12,345,678".
std::string format_count(int64_t n);

// As printf, of any length.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* pattern, ...);

// `*` matches any run of characters, `?` one, `{a,b}` either. Braces in braces stand for
// themselves.
bool glob_match(std::string_view pattern, std::string_view text);

// The known name nearest to `name` by edit distance, else the longest that contains it or is part
// of it; empty where none is near.
std::string nearest(std::string_view name, std::span<const std::string> known);
// "; did you mean `x`?" where something is near, else "; known: a, b, c".
std::string suggestion(std::string_view name, std::span<const std::string> known);

}  // namespace compact
