// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/added_tokens.h"

#include <algorithm>
#include <cctype>

#include "compact/base/check.h"
#include "compact/data/files/printable.h"
#include "compact/data/tokenizers/hf_characters.h"

namespace compact {
namespace {

// Where the last character of text[0, end) begins; end > 0.
size_t before(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool word_ends_at(std::string_view text, size_t end) {
  if (end == 0) return false;
  size_t i = before(text, end);
  return is_word_part(next_character(text, i));
}

bool word_starts_at(std::string_view text, size_t i) {
  return i < text.size() && is_word_part(next_character(text, i));
}

}  // namespace

bool AddedToken::touches_letters() const {
  const auto letter = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x80 || std::isalnum(byte) != 0;
  };
  return !content.empty() && (letter(content.front()) || letter(content.back()));
}

void AddedTokenFinder::add(const AddedToken& token, std::string_view content,
                           const std::string& where) {
  COMPACT_CHECK(!content.empty(), where, ": added token ", token.id, " `", printable(token.content),
                "` must not be empty");
  COMPACT_CHECK(trie_.add(content, static_cast<uint32_t>(tokens_.size())), where,
                ": added tokens must be unique, `", printable(content), "` is there twice");
  starts_[static_cast<unsigned char>(content[0])] = true;
  tokens_.push_back(token);
}

void AddedTokenFinder::split(std::string_view text, FunctionRef<void(std::string_view)> rest,
                             FunctionRef<void(uint32_t)> found) const {
  size_t done = 0;
  for (size_t i = tokens_.empty() ? text.size() : 0; i < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[i])]) {
      ++i;
      continue;
    }
    const auto match = trie_.longest(text.substr(i));
    if (!match) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[match->value];
    size_t start = i, stop = i + match->length;
    i = stop;  // also where what follows turns the match down
    if (token.single_word && (word_ends_at(text, start) || word_starts_at(text, stop))) continue;
    if (token.lstrip) {
      while (start > done) {
        const size_t last = before(text, start);
        size_t end = last;
        if (!is_space(next_character(text, end))) break;
        start = last;
      }
      start = std::max(start, done);
    }
    if (token.rstrip) {
      for (size_t end = stop; end < text.size();) {
        if (!is_space(next_character(text, end))) break;
        stop = end;
      }
    }
    if (done < start) rest(text.substr(done, start - done));
    found(token.id);
    done = stop;
  }
  if (done < text.size()) rest(text.substr(done));
}

bool can_cut_before_space(const std::vector<AddedToken>& tokens) {
  return std::none_of(tokens.begin(), tokens.end(), [](const AddedToken& token) {
    if (token.rstrip) return true;
    for (size_t i = 0; i < token.content.size();) {
      if (is_space(next_character(token.content, i))) return true;
    }
    return false;
  });
}

}  // namespace compact
