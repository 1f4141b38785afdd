// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/text_lines.h"

#include <algorithm>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/odd_ones.h"
#include "compact/data/files/utf8.h"

namespace compact {
namespace {

constexpr size_t kTextBlock = size_t{1} << 16;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

TextLines::TextLines(const std::string& path, TextRules rules)
    : path_(path), rules_(std::move(rules)), source_(open_source(path)), buffer_(kTextBlock) {}

bool TextLines::fill() {
  while (waiting_.empty()) {
    size_t size = 0, read = 0;
    do {  // the mark and UTF-16 show in the first four bytes, which a source may split
      size += read = source_->read(buffer_.data() + size, buffer_.size() - size);
    } while (bytes_ == 0 && read > 0 && size < 4);
    waiting_ = {buffer_.data(), size};
    if (bytes_ == 0) refuse_utf16(path_, waiting_);
    if (rules_.watch) rules_.watch(waiting_);
    if (waiting_.empty()) return false;
    if (bytes_ == 0 && waiting_.starts_with(kByteOrderMark)) mark_ = kByteOrderMark.size();
    if (bytes_ == 0) waiting_.remove_prefix(mark_);
    bytes_ += static_cast<int64_t>(size);
  }
  return true;
}

bool TextLines::next() {
  raw_.clear();
  line_.clear();
  if (!fill()) return false;
  ++number_;
  for (bool ended = false; !ended && fill();) {
    const size_t length = std::min(waiting_.find('\n'), waiting_.size());
    ended = length < waiting_.size();
    COMPACT_CHECK(raw_.size() + length <= rules_.longest, where(), " must be at most ",
                  format_bytes(static_cast<int64_t>(rules_.longest)), " long");
    raw_ += waiting_.substr(0, length);
    waiting_.remove_prefix(length + ended);
  }
  carriage_ = raw_.ends_with('\r');
  if (carriage_) raw_.pop_back();
  Utf8Repair repair;
  repair.feed(raw_, line_);
  repair.finish(line_);
  const size_t nul = rules_.nul == TextRules::kKept ? raw_.npos : raw_.find('\0');
  if (nul != raw_.npos && rules_.nul == TextRules::kOdd) {
    throw OddOne(cat(where(), " must be text, but byte ", nul + (number_ == 1 ? mark_ : 0),
                     " of it is NUL: a binary file"));
  }
  if (nul != raw_.npos) replaced_ += replace_nuls(line_);
  if (rules_.strict && repair.replaced() > 0) {
    const auto first = std::ranges::mismatch(raw_, line_).in1 - raw_.begin();
    throw OddOne(cat(where(), " must be UTF-8, but byte ",
                     static_cast<size_t>(first) + (number_ == 1 ? mark_ : 0), " of it is not"));
  }
  replaced_ += repair.replaced();
  return true;
}

std::string_view TextLines::block() {
  if (!fill()) return {};
  const std::string_view block = std::exchange(waiting_, {});
  if (rules_.nul != TextRules::kReplaced || block.find('\0') == block.npos) return block;
  line_ = block;
  replaced_ += replace_nuls(line_);
  return line_;
}

std::string TextLines::where() const {
  return number_ == 0 ? path_ : cat(path_, ": line ", number_);
}

}  // namespace compact
