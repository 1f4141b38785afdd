// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/byte_bpe.h"

#include <xxhash.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/printable.h"
#include "compact/data/tokenizers/byte_alphabet.h"
#include "compact/data/tokenizers/hf_characters.h"

namespace compact {
namespace {

constexpr uint32_t kFree = ~0u;
constexpr size_t kLongestCached = 64;  // bytes of a word

size_t mix(uint64_t pair) { return static_cast<size_t>((pair * 0x9E3779B97F4A7C15) >> 32); }

}  // namespace

ByteBpe::ByteBpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges,
                 const BpeSettings& settings, const std::string& where)
    : settings_(settings) {
  size_t places = 16;
  while (places < 2 * merges.size()) places *= 2;
  rules_.assign(places, Rule{0, 0, kFree});
  const auto find = [&](const std::string& token, size_t rank) {
    const auto id = vocabulary.find(token);
    COMPACT_CHECK(id, where, ": merge ", rank + 1, " (`", printable(merges[rank].first), "` and `",
                  printable(merges[rank].second), "`) needs the token `", printable(token),
                  "`, which the vocabulary does not have");
    return *id;
  };
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const uint64_t pair = uint64_t{find(left, rank)} << 32 | find(right, rank);
    size_t i = mix(pair) & (places - 1);
    while (rules_[i].token != kFree && rules_[i].pair != pair) i = (i + 1) & (places - 1);
    // If a pair is given twice, the last one counts.
    rules_[i] = {pair, static_cast<uint32_t>(rank), find(left + right, rank)};
  }
  for (int64_t id = 0; id < vocabulary.size(); ++id) {
    const auto number = static_cast<uint32_t>(id);
    const std::string& token = *vocabulary.token(number);
    if (token.empty()) continue;
    if (settings_.characters) {
      size_t end = 0;
      next_character(token, end);
      if (end == token.size()) characters_.emplace(token, number);
      if (settings_.ignore_merges) words_.emplace(token, number);
      continue;
    }
    const auto bytes = alphabet_bytes(token);
    if (!bytes) continue;
    if (bytes->size() == 1) bytes_[static_cast<unsigned char>((*bytes)[0])] = number;
    if (settings_.ignore_merges) words_.emplace(*bytes, number);
  }
  if (!settings_.byte_fallback) return;
  for (size_t byte = 0; byte < 256; ++byte) {
    bytes_[byte] = vocabulary.find(formatted("<0x%02X>", static_cast<unsigned>(byte)));
  }
  const bool all = std::ranges::all_of(bytes_, [](const auto& id) { return id.has_value(); });
  COMPACT_CHECK(all, where, ": byte_fallback needs the tokens <0x00> to <0xFF>");
}

const ByteBpe::Rule* ByteBpe::rule(uint32_t left, uint32_t right) const {
  const uint64_t pair = uint64_t{left} << 32 | right;
  size_t i = mix(pair) & (rules_.size() - 1);
  while (rules_[i].token != kFree) {
    if (rules_[i].pair == pair) return &rules_[i];
    i = (i + 1) & (rules_.size() - 1);
  }
  return nullptr;
}

void ByteBpe::encode(std::string_view word, Scratch& scratch, std::vector<uint32_t>& tokens) const {
  if (word.size() > kLongestCached) return merge(word, scratch, tokens);
  Scratch::Entry& entry = scratch.words_[XXH3_64bits(word.data(), word.size()) % Scratch::kWords];
  if (entry.word != word) {
    entry.word = word;
    entry.tokens.clear();
    merge(word, scratch, entry.tokens);
  }
  tokens.insert(tokens.end(), entry.tokens.begin(), entry.tokens.end());
}

// Makes the symbols to merge: one for each byte, or for each character that is a token.
void ByteBpe::begin(std::string_view word, std::vector<Scratch::Symbol>& symbols) const {
  symbols.clear();
  bool after_unknown = false;
  const auto push = [&](std::optional<uint32_t> token) {
    const bool skip = !token && (!settings_.unknown || (after_unknown && settings_.fuse_unknown));
    after_unknown = !token;
    if (skip) return;
    const auto i = static_cast<int32_t>(symbols.size());
    symbols.push_back({token ? *token : *settings_.unknown, i - 1, i + 1, true});
  };
  const auto push_byte = [&](char c) { push(bytes_[static_cast<unsigned char>(c)]); };
  if (!settings_.characters) {
    std::ranges::for_each(word, push_byte);
    return;
  }
  for (size_t i = 0; i < word.size();) {
    const size_t at = i;
    next_character(word, i);
    const std::string_view character = word.substr(at, i - at);
    const auto found = characters_.find(std::string(character));
    if (found == characters_.end() && settings_.byte_fallback) {
      std::ranges::for_each(character, push_byte);
    } else {
      push(found == characters_.end() ? std::nullopt : std::optional(found->second));
    }
  }
}

void ByteBpe::merge(std::string_view word, Scratch& scratch, std::vector<uint32_t>& tokens) const {
  if (settings_.ignore_merges) {
    if (const auto found = words_.find(std::string(word)); found != words_.end()) {
      tokens.push_back(found->second);
      return;
    }
  }
  using Symbol = Scratch::Symbol;
  std::vector<Symbol>& symbols = scratch.symbols_;
  begin(word, symbols);
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::vector<Scratch::Candidate>& queue = scratch.queue_;
  queue.clear();
  const auto candidate = [&](int32_t at, bool push) {
    const Symbol& left = symbols[static_cast<size_t>(at)];
    if (left.next < 0) return;
    const Rule* const found = rule(left.token, symbols[static_cast<size_t>(left.next)].token);
    if (!found) return;
    queue.push_back({found->rank, at, found->token});
    if (push) std::push_heap(queue.begin(), queue.end());
  };
  for (size_t i = 0; i < symbols.size(); ++i) candidate(static_cast<int32_t>(i), false);
  std::make_heap(queue.begin(), queue.end());
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end());
    const Scratch::Candidate best = queue.back();
    queue.pop_back();
    Symbol& left = symbols[static_cast<size_t>(best.at)];
    if (!left.alive || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    // The two symbols may have changed since: compares what they would become now.
    const Rule* const now = rule(left.token, right.token);
    if (!now || now->token != best.token) continue;
    left.token = best.token;
    left.next = right.next;
    right.alive = false;
    if (right.next >= 0) symbols[static_cast<size_t>(right.next)].previous = best.at;
    if (left.previous >= 0) candidate(left.previous, true);
    candidate(best.at, true);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.alive) tokens.push_back(symbol.token);
  }
}

}  // namespace compact
