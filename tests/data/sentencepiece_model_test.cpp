// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/sentencepiece_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/file.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kValue = 0x100, kNothing = 0x80000000;

// A model of one rule table and the replacements "x" and "".
std::string model_of(const std::vector<uint32_t>& units) {
  const auto length = static_cast<uint32_t>(units.size() * 4);
  const auto field = [](int number, const std::string& content) {
    std::string text(1, static_cast<char>(number << 3 | 2));
    for (size_t left = content.size();; left >>= 7) {
      text += static_cast<char>((left & 0x7F) | (left > 0x7F ? 0x80 : 0));
      if (left <= 0x7F) return text + content;
    }
  };
  std::string map(reinterpret_cast<const char*>(&length), 4);
  map.append(reinterpret_cast<const char*>(units.data()), length);
  map.append("x\0\0", 3);
  return field(3, field(2, map));
}

std::string model_error(const std::string& model) {
  try {
    check_sentencepiece_model(model, "m");
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

// "a", "aa", ...: each with a value.
std::vector<uint32_t> chain(uint32_t length) {
  std::vector<uint32_t> units(256 * (length + 3), kNothing);
  units[0] = 256 << 10;
  for (uint32_t i = 0; i < length; ++i) {
    const uint32_t at = 256 * (i + 1) + 'a', base = 256 * (i + 2);
    units[at] = (at ^ base) << 10 | kValue | 'a';
    units[base] = kNothing | 1;
  }
  return units;
}

TEST(SentencePieceModel, OfTheLibraryIsTaken) {
  for (const char* file : {"examples/data/austen-2048.model", "tests/data/spaces.model"}) {
    EXPECT_EQ(model_error(read_text(std::string(COMPACT_SOURCE_DIR "/") + file, 1 << 24)), "");
  }
  EXPECT_EQ(model_error(model_of(chain(32))), "");
}

TEST(SentencePieceModel, RulesThatLeadAstrayAreRefused) {
  EXPECT_THAT(model_error(model_of(chain(33))), HasSubstr("over 32 rules that begin alike"));
  std::vector<uint32_t> units(256, kNothing);
  units[0] = 256 << 10;
  EXPECT_THAT(model_error(model_of(units)), HasSubstr("unit 0, which leads out of the table"));
  units[0] = 1 << 10 | 0x200;  // one step of 256
  EXPECT_THAT(model_error(model_of(units)), HasSubstr("unit 0, which leads out of the table"));
  units[0] = 1 << 10 | kValue;
  units[1] = kNothing | 3;
  EXPECT_THAT(model_error(model_of(units)), HasSubstr("outside of the replacements"));
  units[0] = 1 << 10;
  units[96] = 97 << 10 | 'a';
  EXPECT_THAT(model_error(model_of(units)), HasSubstr("a way that comes back to unit 96"));
  EXPECT_THAT(model_error(model_of({0})), HasSubstr("a table of 4 bytes"));
  EXPECT_THAT(model_error(model_of({})), HasSubstr("a table of 0 bytes"));
}

TEST(SentencePieceModel, MessagesCutOffAreRefused) {
  const std::string whole = model_of(chain(2));
  EXPECT_EQ(model_error(whole), "");
  for (size_t length = 1; length < whole.size(); ++length) {
    EXPECT_NE(model_error(whole.substr(0, length)), "") << length;
  }
  EXPECT_THAT(model_error(std::string("\x1b", 1)), HasSubstr("a field of type 3"));
  EXPECT_THAT(model_error(std::string(12, '\xff')), HasSubstr("a number of over ten bytes"));
}

}  // namespace
}  // namespace compact
