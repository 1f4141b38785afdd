// SPDX-License-Identifier: Apache-2.0
// `bytes`: a token is a byte; 256 ends a document.
#include <xxhash.h>

#include "compact/base/check.h"
#include "compact/data/tokenizers/tokenizer.h"

namespace compact {
namespace {

constexpr uint32_t kEndOfText = 256;

class BytesTokenizer final : public Tokenizer {
 public:
  std::vector<uint32_t> encode(std::string_view text) const override {
    std::vector<uint32_t> tokens(text.size());
    for (size_t i = 0; i < text.size(); ++i) tokens[i] = static_cast<unsigned char>(text[i]);
    return tokens;
  }
  std::string decode(std::span<const uint32_t> tokens) const override {
    std::string text;
    text.reserve(tokens.size());
    for (const uint32_t token : tokens) {
      COMPACT_CHECK(token <= kEndOfText, "[bytes] a token id must be below 257, is ", token);
      if (token != kEndOfText) text.push_back(static_cast<char>(token));
    }
    return text;
  }
  int64_t vocabulary() const override { return 257; }
  uint32_t end_of_text() const override { return kEndOfText; }
  Cut cut() const override { return Cut::kAnywhere; }
  std::string spec() const override { return "bytes"; }
  uint64_t hash() const override { return XXH3_64bits("bytes", 5); }
};

}  // namespace

std::unique_ptr<Tokenizer> make_bytes_tokenizer(const Spec& spec) {
  spec.allow({});
  return std::make_unique<BytesTokenizer>();
}

}  // namespace compact
