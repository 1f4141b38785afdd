// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/utf8.h"

#include <gtest/gtest.h>

#include "compact/base/philox.h"

namespace compact {
namespace {

struct Result {
  std::string text;
  int64_t replaced;
};

Result repair(const std::string& text, size_t part) {
  Utf8Repair r;
  std::string out;
  for (size_t i = 0; i < text.size(); i += part)
    r.feed(std::string_view(text).substr(i, part), out);
  r.finish(out);
  return {out, r.replaced()};
}

const std::string kBad = "\xEF\xBF\xBD";

TEST(Utf8, KnownCases) {
  const struct {
    std::string text, expected;
    int64_t replaced;
  } cases[] = {
      {"", "", 0},
      {"plain", "plain", 0},
      {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 0},
      {"a\xFFz", "a" + kBad + "z", 1},
      {"\x80\x80", kBad + kBad, 2},
      {"\xC3", kBad, 1},
      {"\xC3(", kBad + "(", 1},
      {"\xE2\x82", kBad, 1},
      {"\xE2\x82x", kBad + "x", 1},
      {"\xF0\x9F\x98", kBad, 1},
      {"\xC0\xAF", kBad + kBad, 2},                        // overlong
      {"\xE0\x80\xAF", kBad + kBad + kBad, 3},             // overlong
      {"\xED\xA0\x80", kBad + kBad + kBad, 3},             // surrogate
      {"\xF4\x90\x80\x80", kBad + kBad + kBad + kBad, 4},  // past U+10FFFF
      {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF", 0},
      {"\xE2\xE2\x82\xAC", kBad + "\xE2\x82\xAC", 1},
      {"\xEF\xBB\xBFtext", "\xEF\xBB\xBFtext", 0},
  };
  for (const auto& c : cases) {
    const Result r = repair(c.text, 100);
    EXPECT_EQ(r.text, c.expected);
    EXPECT_EQ(r.replaced, c.replaced) << c.text;
  }
}

TEST(Utf8, PartsGiveWhatTheWholeGivesAndTheResultIsValid) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::string text;
    for (uint64_t i = 0; i < 40; ++i) {
      const uint32_t r = philox(seed, i).v[0];
      // Lead and continuation bytes often enough that long sequences come up.
      const unsigned char bytes[] = {
          static_cast<unsigned char>(r), 0xE2, 0x82, 0xF0, 0x9F, 0xED, 'a'};
      text.push_back(static_cast<char>(bytes[(r >> 8) % 7]));
    }
    const Result whole = repair(text, text.size());
    for (size_t part = 1; part < 8; ++part) {
      const Result parts = repair(text, part);
      EXPECT_EQ(parts.text, whole.text);
      EXPECT_EQ(parts.replaced, whole.replaced);
    }
    const Result again = repair(whole.text, 5);
    EXPECT_EQ(again.text, whole.text);
    EXPECT_EQ(again.replaced, 0);
  }
}

}  // namespace
}  // namespace compact
