// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/field_lines.h"

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/byte_source.h"
#include "compact/data/files/printable.h"

namespace compact {
namespace {

constexpr size_t kMostBytes = size_t{1} << 29;
constexpr size_t kFieldBlock = size_t{1} << 16;
constexpr std::string_view kBetween = " \t\r,";

}  // namespace

FieldLines::FieldLines(const std::string& path) : path_(path) {
  const auto source = open_source(path);
  size_t done = 0;
  while (true) {
    if (text_.size() - done < kFieldBlock) text_.resize(done + done / 2 + kFieldBlock);
    const size_t got = source->read(text_.data() + done, text_.size() - done);
    if (got == 0) break;
    done += got;
    COMPACT_CHECK(done <= kMostBytes, path, ": must have at most ", kMostBytes,
                  " bytes of text, has more");
  }
  const size_t last = std::string_view(text_).substr(0, done).find_last_not_of(" \t\r\n");
  COMPACT_CHECK(last != text_.npos, path, ": has no lines");
  rest_ = std::string_view(text_).substr(0, last + 1);
}

bool FieldLines::next() {
  if (rest_.empty()) return false;
  const size_t end = std::min(rest_.find('\n'), rest_.size());
  line_ = rest_.substr(0, end);
  rest_.remove_prefix(std::min(end + 1, rest_.size()));
  ++number_;
  return true;
}

std::string FieldLines::where() const { return path_ + ": line " + std::to_string(number_); }

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
