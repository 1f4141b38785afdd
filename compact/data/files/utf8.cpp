// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/utf8.h"

#include <algorithm>

#include "compact/base/check.h"

namespace compact {

void Utf8Repair::replace(std::string& out) {
  out += "\xEF\xBF\xBD";
  ++replaced_;
  pending_.clear();
  missing_ = 0;
  low_ = 0x80, high_ = 0xBF;
}

void Utf8Repair::byte(unsigned char b, std::string& out) {
  if (missing_ > 0) {
    if (b >= low_ && b <= high_) {
      pending_.push_back(static_cast<char>(b));
      low_ = 0x80, high_ = 0xBF;
      if (--missing_ == 0) {
        out += pending_;
        pending_.clear();
      }
      return;
    }
    replace(out);  // `b` itself may start something new
  }
  if (b < 0x80) {
    out.push_back(static_cast<char>(b));
    return;
  }
  if (b < 0xC2 || b > 0xF4) {
    replace(out);
    return;
  }
  pending_.push_back(static_cast<char>(b));
  missing_ = b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3;
  // Overlong forms, surrogates and code points past U+10FFFF show in the second byte.
  if (b == 0xE0) low_ = 0xA0;
  if (b == 0xED) high_ = 0x9F;
  if (b == 0xF0) low_ = 0x90;
  if (b == 0xF4) high_ = 0x8F;
}

void Utf8Repair::feed(std::string_view text, std::string& out) {
  size_t i = 0;
  while (i < text.size()) {
    size_t end = i;
    if (missing_ == 0) {
      while (end < text.size() && static_cast<unsigned char>(text[end]) < 0x80) ++end;
      out.append(text, i, end - i);
    }
    i = end;
    if (i < text.size()) byte(static_cast<unsigned char>(text[i++]), out);
  }
}

void Utf8Repair::finish(std::string& out) {
  if (missing_ > 0) replace(out);
}

int64_t replace_nuls(std::string& text) {
  const auto count = std::ranges::count(text, '\0');
  if (count == 0) return 0;
  std::string out;
  for (const char c : text) c == 0 ? out += "\xEF\xBF\xBD" : out += c;
  text.swap(out);
  return count;
}

void refuse_utf16(const std::string& path, std::string_view block) {
  COMPACT_CHECK(!block.starts_with("\xFF\xFE") && !block.starts_with("\xFE\xFF"), path,
                ": must be UTF-8, is UTF-16, which `iconv -f UTF-16 -t UTF-8` makes UTF-8");
}

std::string repaired_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  Utf8Repair repair;
  repair.feed(text, out);
  repair.finish(out);
  return out;
}

}  // namespace compact
