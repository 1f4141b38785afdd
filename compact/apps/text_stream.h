// SPDX-License-Identifier: Apache-2.0
// Tokens to text piece by piece: each piece is well-formed UTF-8, and together they equal the
// decoding of all tokens at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compact/data/files/utf8.h"
#include "compact/data/tokenizers/tokenizer.h"

namespace compact {

class TextStream {
 public:
  // `context` (the end of a prompt) is not returned as text, but later text is decoded after it.
  TextStream(const Tokenizer& tokenizer, std::span<const uint32_t> context);

  // The text that the token completes; often empty where a character takes several tokens.
  std::string add(uint32_t token);
  // The text held back so far, with a cut-off character as U+FFFD.
  std::string finish();

 private:
  std::string advance(bool last);

  const Tokenizer& tokenizer_;
  Utf8Repair repair_;
  std::vector<uint32_t> tokens_;  // the last few tokens, decoded together with each new one
  size_t given_ = 0;              // how many of them, from the first, have had their text returned
};

}  // namespace compact
