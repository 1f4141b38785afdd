// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/field_lines.h"

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/printable.h"

namespace compact {
namespace {

constexpr size_t kMostBytes = size_t{1} << 29;
constexpr std::string_view kBetween = " \t\r,";

}  // namespace

FieldLines::FieldLines(const std::string& path)
    : lines_(path, {.longest = kMostBytes, .nul = TextRules::kKept}) {
  COMPACT_CHECK(find(), path, ": has no lines");
}

bool FieldLines::find() {
  while (!found_ && lines_.next()) {
    COMPACT_CHECK(lines_.bytes() <= static_cast<int64_t>(kMostBytes), lines_.path(),
                  ": must have at most ", kMostBytes, " bytes of text, has more");
    found_ = !trim(lines_.line()).empty();
    blanks_ += !found_;
  }
  return found_;
}

bool FieldLines::next() {
  if (!find()) return false;
  ++number_;
  found_ = blanks_ > 0;
  line_ = found_ ? "" : lines_.line();
  blanks_ -= found_;
  return true;
}

std::string FieldLines::where() const { return cat(lines_.path(), ": line ", number_); }

bool FieldLines::more() {
  line_.remove_prefix(std::min(line_.find_first_not_of(kBetween), line_.size()));
  return !line_.empty();
}

std::string_view FieldLines::field(std::string_view what) {
  COMPACT_CHECK(more(), where(), ": ends before ", what);
  const size_t end = std::min(line_.find_first_of(kBetween), line_.size());
  const std::string_view text = line_.substr(0, end);
  line_.remove_prefix(end);
  return text;
}

int64_t FieldLines::integer(std::string_view what, int64_t low, int64_t high) {
  const std::string_view text = field(what);
  const auto value = parse_integer(text);
  COMPACT_CHECK(value, where(), ": ", what, " must be an integer, is `", printable(text), "`");
  COMPACT_CHECK(*value >= low && *value <= high, where(), ": ", what, " must be from ", low, " to ",
                high, ", is ", *value);
  return *value;
}

float FieldLines::real(std::string_view what) {
  const std::string_view text = field(what);
  const auto value = parse_number(text);
  COMPACT_CHECK(value && std::isfinite(static_cast<float>(*value)), where(), ": ", what,
                " must be a finite number, is `", printable(text), "`");
  return static_cast<float>(*value);
}

void FieldLines::end() {
  COMPACT_CHECK(!more(), where(), ": must end before `", printable(line_), "`");
}

}  // namespace compact
