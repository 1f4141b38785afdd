// SPDX-License-Identifier: Apache-2.0
// A tokenizer of any vocabulary, to write token files of either width: a token is a byte.
#pragma once

#include "compact/base/check.h"
#include "compact/data/tokenizers/tokenizer.h"

namespace compact::test {

class WideTokenizer : public Tokenizer {
 public:
  explicit WideTokenizer(int64_t vocabulary) : vocabulary_(vocabulary) {}
  std::vector<uint32_t> encode(std::string_view text) const override {
    return {text.begin(), text.end()};
  }
  std::string decode(std::span<const uint32_t> tokens) const override {
    return {tokens.begin(), tokens.end()};
  }
  int64_t vocabulary() const override { return vocabulary_; }
  uint32_t end_of_text() const override { return static_cast<uint32_t>(vocabulary_ - 1); }
  Cut cut() const override { return Cut::kAnywhere; }
  std::string spec() const override { return cat("wide:vocabulary=", vocabulary_); }
  uint64_t hash() const override { return static_cast<uint64_t>(vocabulary_); }

 private:
  int64_t vocabulary_;
};

}  // namespace compact::test
