// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/bert_normalizer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "compact/data/tokenizers/hf_characters.h"

namespace compact {
namespace {

bool is_ideograph(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kBlocks[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  if (c < 0x3400) return false;
  return std::any_of(std::begin(kBlocks), std::end(kBlocks),
                     [&](const auto& b) { return c >= b.first && c <= b.second; });
}

// Collects combining characters to put them into canonical order before accents fall away.
class Output {
 public:
  Output(const BertNormalizer& settings, std::string& text) : settings_(settings), text_(text) {}

  void add(char32_t c) {
    if (!settings_.strip_accents) return put(c);
    if (c < 0x80) {
      flush();
      return put(c);
    }
    char32_t buffer[8];
    for (const char32_t part : decomposed(c, buffer)) {
      const int order = combining_class(part);
      if (order == 0) {
        flush();
        if (!is_bert_mark(part)) put(part);
      } else {
        waiting_.emplace_back(order, part);
      }
    }
  }

  void flush() {
    if (waiting_.empty()) return;
    std::stable_sort(waiting_.begin(), waiting_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [order, c] : waiting_) {
      if (!is_bert_mark(c)) put(c);
    }
    waiting_.clear();
  }

 private:
  void put(char32_t c) {
    if (!settings_.lowercase) return append_character(text_, c);
    if (c < 0x80) {
      text_.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
    } else if (c == 0x130) {
      text_ += "i\xCC\x87";
    } else {
      append_character(text_, lower_case(c));
    }
  }

  const BertNormalizer& settings_;
  std::string& text_;
  std::vector<std::pair<int, char32_t>> waiting_;
};

}  // namespace

std::string BertNormalizer::operator()(std::string_view text) const {
  std::string result;
  result.reserve(text.size() + text.size() / 8);
  Output out(*this, result);
  for (size_t i = 0; i < text.size();) {
    char32_t c = next_character(text, i);
    if (clean_text) {
      if (c == '\t' || c == '\n' || c == '\r') {
        c = ' ';
      } else if (c < 0x80) {
        if (c < 0x20 || c == 0x7F) continue;
      } else if (c == 0xFFFD || is_bert_other(c)) {
        continue;
      } else if (is_space(c)) {
        c = ' ';
      }
    }
    if (handle_chinese_chars && is_ideograph(c)) {
      out.add(' ');
      out.add(c);
      out.add(' ');
    } else {
      out.add(c);
    }
  }
  out.flush();
  return result;
}

}  // namespace compact
