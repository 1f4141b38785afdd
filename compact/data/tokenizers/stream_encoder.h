// SPDX-License-Identifier: Apache-2.0
// Encodes a document of any length in constant memory. Text is gathered to 16 KiB and encoded up to
// the last place where a cut changes nothing (Tokenizer::cut): a single space between two words.
// Where 1 MiB has none (or the tokenizer allows none), it is cut after the last line end, or else
// between two characters; there, and only there, tokens may differ from those of the whole text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compact/data/files/utf8.h"
#include "compact/data/tokenizers/tokenizer.h"

namespace compact {

constexpr size_t kStreamGather = size_t{1} << 14;

class StreamEncoder {
 public:
  // `tokenizer` must outlive it.
  explicit StreamEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Appends what can be encoded already to `tokens`.
  void feed(std::string_view text, std::vector<uint32_t>& tokens);
  // The document ends: appends the rest (not the end-of-text token). Ready for the next one.
  void finish(std::vector<uint32_t>& tokens);

  // Ill-formed UTF-8 sequences replaced by U+FFFD so far.
  int64_t replaced() const { return repair_.replaced(); }
  // The most text held at once, in bytes.
  size_t most_held() const { return most_held_; }

 private:
  void encode(std::string_view text, std::vector<uint32_t>& tokens) const;
  void drain(std::vector<uint32_t>& tokens);

  const Tokenizer& tokenizer_;
  Utf8Repair repair_;
  std::string text_;                 // not yet encoded
  size_t next_try_ = kStreamGather;  // the length at which to look for a cut
  size_t most_held_ = 0;
};

}  // namespace compact
