// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/stream_encoder.h"

#include <algorithm>
#include <cctype>

namespace compact {
namespace {

constexpr size_t kMost = size_t{1} << 20;  // cut anywhere

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Whether the character that starts (or contains) text[i] belongs to a word for every normaliser:
// neither white space nor something that compatibility normalisation joins with a space. Judged by
// the first byte; blocks that hold such characters are left out whole.
bool is_word(std::string_view text, size_t i) {
  while (i > 0 && continues(text[i])) --i;
  const auto lead = static_cast<unsigned char>(text[i]);
  if (lead < 0x80) return lead > 0x20 && lead < 0x7F;
  return (lead >= 0xC3 && lead <= 0xCB) || (lead >= 0xCE && lead <= 0xE0) ||
         (lead >= 0xE4 && lead <= 0xEE) || lead >= 0xF0;
}

bool is_letter(std::string_view text, size_t i) {
  const auto c = static_cast<unsigned char>(text[i]);
  return c >= 0x80 || std::isalnum(c) != 0;
}

// The last single space between two words, or npos; `letters`: between two letters or digits.
size_t last_space(std::string_view text, bool letters) {
  if (text.size() < 3) return text.npos;
  size_t i = text.size() - 1;
  while ((i = text.rfind(' ', i - 1)) != text.npos && i > 0) {
    if (is_word(text, i - 1) && is_word(text, i + 1) &&
        (!letters || (is_letter(text, i - 1) && is_letter(text, i + 1)))) {
      return i;
    }
    if (i < 2) break;
  }
  return text.npos;
}

size_t forced_cut(std::string_view text) {
  const size_t newline = text.rfind('\n');
  if (newline != text.npos) return newline + 1;
  size_t i = text.size() - 1;
  while (i > 1 && continues(text[i])) --i;
  return i;
}

}  // namespace

void StreamEncoder::encode(std::string_view text, std::vector<uint32_t>& tokens) const {
  const std::vector<uint32_t> more = tokenizer_.encode(text);
  tokens.insert(tokens.end(), more.begin(), more.end());
}

void StreamEncoder::drain(std::vector<uint32_t>& tokens) {
  most_held_ = std::max(most_held_, text_.size());
  if (text_.size() < next_try_) return;
  const Cut cut = tokenizer_.cut();
  const size_t space = cut == Cut::kNowhere ? text_.npos : last_space(text_, cut == Cut::kAtSpace);
  if (space != text_.npos) {
    encode(std::string_view(text_).substr(0, space), tokens);
    text_.erase(0, cut == Cut::kAtSpace ? space + 1 : space);
  } else if (text_.size() >= kMost) {
    const size_t place = forced_cut(text_);
    encode(std::string_view(text_).substr(0, place), tokens);
    text_.erase(0, place);
  }
  // Doubled, so that text without a place to cut is searched in linear time.
  next_try_ = std::clamp(2 * text_.size(), kStreamGather, kMost);
}

void StreamEncoder::feed(std::string_view text, std::vector<uint32_t>& tokens) {
  if (tokenizer_.cut() == Cut::kAnywhere) {
    encode(text, tokens);
    return;
  }
  while (!text.empty()) {
    const size_t part = std::min(text.size(), kStreamGather);
    repair_.feed(text.substr(0, part), text_);
    text.remove_prefix(part);
    drain(tokens);
  }
}

void StreamEncoder::finish(std::vector<uint32_t>& tokens) {
  repair_.finish(text_);
  if (!text_.empty()) encode(text_, tokens);
  text_.clear();
  next_try_ = kStreamGather;
}

}  // namespace compact
