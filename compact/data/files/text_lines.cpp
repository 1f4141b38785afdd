// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/text_lines.h"

#include <cstring>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/odd_ones.h"
#include "compact/data/files/utf8.h"

namespace compact {
namespace {

constexpr size_t kTextBlock = size_t{1} << 16;
constexpr size_t kLongestTextLine = size_t{1} << 26;
constexpr std::string_view kTextMark = "\xEF\xBB\xBF";

}  // namespace

TextLines::TextLines(const std::string& path)
    : path_(path), source_(open_source(path)), buffer_(kTextBlock) {}

bool TextLines::fill() {
  if (begin_ < end_) return true;
  begin_ = 0;
  end_ = source_->read(buffer_.data(), buffer_.size());
  if (number_ == 0) refuse_utf16(path_, {buffer_.data(), end_});
  return end_ > 0;
}

bool TextLines::next() {
  raw_.clear();
  line_.clear();
  if (!fill()) return false;
  ++number_;
  for (bool ended = false; !ended && fill();) {
    const char* const start = buffer_.data() + begin_;
    const void* const newline = std::memchr(start, '\n', end_ - begin_);
    ended = newline != nullptr;
    const size_t length =
        ended ? static_cast<size_t>(static_cast<const char*>(newline) - start) : end_ - begin_;
    COMPACT_CHECK(raw_.size() + length <= kLongestTextLine, where(), " must be at most ",
                  format_bytes(kLongestTextLine), " long");
    raw_.append(start, length);
    begin_ += length + ended;
  }
  std::string_view text = raw_;
  if (number_ == 1 && text.starts_with(kTextMark)) text.remove_prefix(kTextMark.size());
  carriage_ = text.ends_with('\r');
  if (carriage_) text.remove_suffix(1);
  Utf8Repair repair;
  repair.feed(text, line_);
  repair.finish(line_);
  const size_t nul = raw_.find('\0');
  if (nul != raw_.npos) {
    throw OddOne(cat(where(), " must be text, but byte ", nul, " of it is NUL: a binary file"));
  }
  replaced_ += repair.replaced();
  return true;
}

std::string TextLines::where() const { return cat(path_, ": line ", number_); }

}  // namespace compact
