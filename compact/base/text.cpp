// SPDX-License-Identifier: Apache-2.0
#include "compact/base/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "compact/base/ranges.h"

namespace compact {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (true) {
    const size_t end = text.find(separator, start);
    parts.emplace_back(text.substr(start, end == text.npos ? text.npos : end - start));
    if (end == text.npos) return parts;
    start = end + 1;
  }
}

std::string_view trim(std::string_view text) {
  const char* const space = " \t\r\n";
  const size_t first = text.find_first_not_of(space);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(space) - first + 1);
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::string format_bytes(int64_t bytes) {
  static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024 && unit < 4) value /= 1024, ++unit;
  char out[32];
  if (unit == 0) {
    std::snprintf(out, sizeof out, "%lld B", static_cast<long long>(bytes));
  } else {
    std::snprintf(out, sizeof out, "%.*f %s", std::abs(value) < 10 ? 2 : 1, value, units[unit]);
  }
  return out;
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}, {"ki", 0x1p10},
      {"mi", 0x1p20},  {"gi", 0x1p30},  {"ti", 0x1p40},  {"kb", 1e3},     {"mb", 1e6},
      {"gb", 1e9},     {"tb", 1e12},    {"bytes", 1},    {"b", 1},        {"k", 1e3},
      {"m", 1e6},      {"g", 1e9},      {"t", 1e12}};
  text = trim(text);
  if (const auto bytes = parse_integer(text)) {
    return *bytes > 0 && *bytes < int64_t{1} << 62 ? bytes : std::nullopt;
  }
  const std::string lower = lower_case(text);
  for (const auto& [unit, size] : kUnits) {
    if (!lower.ends_with(unit)) continue;
    const auto number = parse_number(trim(text.substr(0, text.size() - unit.size())));
    if (!number || !(*number > 0) || *number * size >= 0x1p62 || *number * size < 1)
      return std::nullopt;
    return static_cast<int64_t>(*number * size);
  }
  return std::nullopt;
}

std::string format_duration(double seconds) {
  const auto s = static_cast<long long>(std::llround(std::max(0.0, seconds)));
  char out[48];
  if (s >= 3600) {
    std::snprintf(out, sizeof out, "%lldh%02lldm", s / 3600, s % 3600 / 60);
  } else if (s >= 60) {
    std::snprintf(out, sizeof out, "%lldm%02llds", s / 60, s % 60);
  } else {
    std::snprintf(out, sizeof out, "%llds", s);
  }
  return out;
}

std::string format_count(int64_t n) {
  const std::string digits = std::to_string(n);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool inside = i > 0 && digits[i - 1] != '-';
    if (inside && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

namespace {

// The places in a text where a match of the pattern's first part can end. With sets of places a
// match takes at most the product of both lengths, whatever stars and braces there are.
using Ends = std::vector<bool>;

// The places after matching `part`, which has no braces.
Ends after(Ends ends, std::string_view part, std::string_view text) {
  for (const char c : part) {
    if (c == '*') {
      for (size_t t = 1; t < ends.size(); ++t) ends[t] = ends[t] || ends[t - 1];
    } else {
      for (size_t t = text.size(); t > 0; --t) {
        ends[t] = ends[t - 1] && (c == '?' || c == text[t - 1]);
      }
      ends[0] = false;
    }
  }
  return ends;
}

// The places after matching a number of the range.
Ends after(const Ends& ends, const NumberRange& range, std::string_view text) {
  Ends result(ends.size());
  for (size_t t = 0; t < text.size(); ++t) {
    int64_t number = 0;
    for (size_t end = t; ends[t] && end < text.size() && end - t < kMostRangeDigits; ++end) {
      const char c = text[end];
      if (c < '0' || c > '9' || (end > t && text[t] == '0')) break;
      number = 10 * number + (c - '0');
      if (number >= range.first && number <= range.last) result[end + 1] = true;
    }
  }
  return result;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t up = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = up;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string formatted(const char* pattern, ...) {
  va_list values, again;
  va_start(values, pattern);
  va_copy(again, values);
  std::string out(static_cast<size_t>(std::vsnprintf(nullptr, 0, pattern, values)), '\0');
  std::vsnprintf(out.data(), out.size() + 1, pattern, again);
  va_end(again);
  va_end(values);
  return out;
}

bool glob_match(std::string_view pattern, std::string_view text) {
  Ends ends(text.size() + 1);
  ends[0] = true;
  for (;;) {
    const size_t open = pattern.find('{');
    const size_t close = open == pattern.npos ? pattern.npos : pattern.find('}', open);
    if (close == pattern.npos) return after(std::move(ends), pattern, text).back();
    ends = after(std::move(ends), pattern.substr(0, open), text);
    Ends either(ends.size());
    for (const std::string& choice : split(pattern.substr(open + 1, close - open - 1), ',')) {
      const auto range = parse_range(choice);
      const Ends with = range ? after(ends, *range, text) : after(ends, choice, text);
      for (size_t t = 0; t < with.size(); ++t) either[t] = either[t] || with[t];
    }
    ends = std::move(either);
    pattern.remove_prefix(close + 1);
  }
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string nearest(std::string_view name, std::span<const std::string> known) {
  std::string best;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& k : known) {
    const size_t d = edit_distance(name, k);
    if (d < least) least = d, best = k;
  }
  if (!best.empty()) return best;
  // Else a name that contains it or is part of it, as gpt2 of gpt2-small.
  constexpr size_t kLeastPart = 3;
  size_t most = kLeastPart - 1;
  const std::string lower = lower_case(name);
  for (const std::string& k : known) {
    const std::string other = lower_case(k);
    const bool part = lower.find(other) != lower.npos || other.find(lower) != other.npos;
    const size_t shared = std::min(lower.size(), other.size());
    if (part && shared > most) most = shared, best = k;
  }
  return best;
}

std::string suggestion(std::string_view name, std::span<const std::string> known) {
  const std::string near = nearest(name, known);
  if (!near.empty()) return "; did you mean `" + near + "`?";
  std::string all = "; known:";
  for (const std::string& k : known) all += " " + k;
  return all;
}

}  // namespace compact
