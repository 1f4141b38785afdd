// SPDX-License-Identifier: Apache-2.0
// Byte pair encoding of words of bytes or of characters (Sennrich et al., arXiv 1508.07909; GPT-2):
// while neighbours have a merge, the pair that is first in the list of merges becomes one symbol,
// the leftmost of several. O(n log n) for a word of n bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compact/data/tokenizers/vocabulary.h"

namespace compact {

struct BpeSettings {
  std::optional<uint32_t> unknown;  // for bytes that are no token; without it they are left out
  bool fuse_unknown = false;        // one for several in a row
  bool ignore_merges = false;       // a word that is a token is that token
  bool characters = false;          // words are of characters, tokens as they are written
  bool byte_fallback = false;       // of characters: one that is not a token is bytes as <0x0A>
};

class ByteBpe {
 public:
  using Merge = std::pair<std::string, std::string>;

  // Tokens and merges as their files write them: bytes as in byte_alphabet.h. Throws InputError
  // beginning with `where` where a merge names a token that is not there, or makes one.
  ByteBpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges,
          const BpeSettings& settings, const std::string& where);

  // The state of one thread: the tokens of recently seen words, and buffers.
  class Scratch {
   private:
    friend class ByteBpe;
    struct Entry {
      std::string word;
      std::vector<uint32_t> tokens;
    };
    struct Symbol {
      uint32_t token;
      int32_t previous, next;  // -1: none
      bool alive;
    };
    struct Candidate {
      uint32_t rank;
      int32_t at;      // the left symbol
      uint32_t token;  // that the two become
      // The first of a heap is the lowest rank, then the leftmost.
      bool operator<(const Candidate& other) const {
        return rank != other.rank ? rank > other.rank : at > other.at;
      }
    };
    static constexpr size_t kWords = size_t{1} << 15;
    std::vector<Entry> words_ = std::vector<Entry>(kWords);  // by hash, the last one stays
    std::vector<Symbol> symbols_;
    std::vector<Candidate> queue_;
  };

  // Appends the tokens of `word`, not empty.
  void encode(std::string_view word, Scratch& scratch, std::vector<uint32_t>& tokens) const;

 private:
  struct Rule {
    uint64_t pair;         // left << 32 | right
    uint32_t rank, token;  // kFree: no rule here
  };
  const Rule* rule(uint32_t left, uint32_t right) const;
  void begin(std::string_view word, std::vector<Scratch::Symbol>& symbols) const;
  void merge(std::string_view word, Scratch& scratch, std::vector<uint32_t>& tokens) const;

  BpeSettings settings_;
  std::vector<Rule> rules_;                               // a hash table, at most half full
  std::optional<uint32_t> bytes_[256];                    // tokens of single bytes
  std::unordered_map<std::string, uint32_t> words_;       // whole tokens, for ignore_merges
  std::unordered_map<std::string, uint32_t> characters_;  // tokens of one character
};

}  // namespace compact
