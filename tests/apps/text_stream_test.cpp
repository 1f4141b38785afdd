// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/text_stream.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "compact/data/tokenizers/tokenizer.h"

namespace compact {
namespace {

const std::string kText = "na\u00efve \u2014 \u65e5\u672c \U0001F600 end";

std::unique_ptr<Tokenizer> austen() {
  return make_tokenizer("sentencepiece:file=" + std::string(COMPACT_SOURCE_DIR) +
                        "/examples/data/austen-2048.model");
}

bool well_formed(const std::string& text) {
  std::string out;
  Utf8Repair repair;
  repair.feed(text, out);
  repair.finish(out);
  return repair.replaced() == 0;
}

std::vector<std::string> stream(const Tokenizer& tokenizer, std::vector<uint32_t> tokens,
                                std::vector<uint32_t> context = {}) {
  TextStream text(tokenizer, context);
  std::vector<std::string> pieces;
  for (const uint32_t token : tokens) pieces.push_back(text.add(token));
  pieces.push_back(text.finish());
  for (const std::string& piece : pieces) EXPECT_TRUE(well_formed(piece)) << piece;
  return pieces;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string all;
  for (const std::string& p : pieces) all += p;
  return all;
}

TEST(TextStream, BytesWaitForWholeCharacters) {
  const auto bytes = make_tokenizer("bytes");
  const auto pieces = stream(*bytes, bytes->encode(kText));
  EXPECT_EQ(joined(pieces), kText);
  EXPECT_EQ(pieces[2], "");        // the first half of i with diaeresis
  EXPECT_EQ(pieces[3], "\u00ef");  // and the second
}

TEST(TextStream, CutOffAndInvalidBytesBecomeReplacementCharacters) {
  const auto bytes = make_tokenizer("bytes");
  EXPECT_EQ(joined(stream(*bytes, {'a', 0xE6, 0x97})), "a\uFFFD");
  EXPECT_EQ(joined(stream(*bytes, {'a', 0xFF, 'b'})), "a\uFFFDb");
  EXPECT_EQ(joined(stream(*bytes, {})), "");
}

TEST(TextStream, SentencePieceTextIsThatOfTheWhole) {
  const auto tokenizer = austen();
  std::ifstream in(std::string(COMPACT_SOURCE_DIR) + "/examples/data/pride-and-prejudice.txt");
  std::string text(20000, '\0');
  in.read(text.data(), 20000);
  const auto tokens = tokenizer->encode(text);
  ASSERT_GT(tokens.size(), 1000u);
  EXPECT_EQ(joined(stream(*tokenizer, tokens)), tokenizer->decode(tokens));
}

TEST(TextStream, ContinuesAPromptWithItsSpaces) {
  const auto tokenizer = austen();
  const auto tokens =
      tokenizer->encode("It is a truth universally acknowledged, that a single man");
  const std::string whole = tokenizer->decode(tokens);
  for (size_t cut = 0; cut <= tokens.size(); ++cut) {
    const std::vector<uint32_t> prompt(tokens.begin(), tokens.begin() + static_cast<int64_t>(cut));
    const std::vector<uint32_t> rest(tokens.begin() + static_cast<int64_t>(cut), tokens.end());
    EXPECT_EQ(tokenizer->decode(prompt) + joined(stream(*tokenizer, rest, prompt)), whole) << cut;
  }
}

}  // namespace
}  // namespace compact
