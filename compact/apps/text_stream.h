// SPDX-License-Identifier: Apache-2.0
// Tokens to text piece by piece: what is given out is well-formed UTF-8 and, put together, what
// decoding all tokens at once gives.
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
  // Text of `context` (the end of a prompt) is not given out, but what follows joins on to it.
  TextStream(const Tokenizer& tokenizer, std::span<const uint32_t> context);

  // The text that the token completes; often empty where a character takes several tokens.
  std::string add(uint32_t token);
  // What still waits, a character cut off as U+FFFD.
  std::string finish();

 private:
  std::string advance(bool last);

  const Tokenizer& tokenizer_;
  Utf8Repair repair_;
  std::vector<uint32_t> tokens_;  // the latest few, all decoded with each new one
  size_t given_ = 0;              // leading ones of tokens_ whose text was given out
};

}  // namespace compact
