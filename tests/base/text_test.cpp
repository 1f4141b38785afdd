// SPDX-License-Identifier: Apache-2.0
#include "compact/base/text.h"

#include <gmock/gmock.h>

#include <limits>

namespace compact {
namespace {

using testing::ElementsAre;

TEST(Text, SplitsAndTrims) {
  EXPECT_THAT(split("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(split("", ','), ElementsAre(""));
  EXPECT_EQ(trim(" \t a b\n"), "a b");
  EXPECT_EQ(trim("  "), "");
}

TEST(Text, ParsesWholeNumbersOnly) {
  EXPECT_EQ(parse_number("1e-3"), 1e-3);
  for (const char* bad : {"", "1x", " 1", "nan", "inf", "-inf", "1e999"}) {
    EXPECT_FALSE(parse_number(bad)) << bad;
  }
  EXPECT_EQ(parse_integer("-12"), -12);
  for (const char* bad : {"", "1.5", "9223372036854775808"})
    EXPECT_FALSE(parse_integer(bad)) << bad;
}

TEST(Text, ParsesSizesAsPeopleWriteThem) {
  for (const char* text : {"10GiB", "10Gi", "10gi", "10 gib", "10737418240", "10737418240 bytes"}) {
    EXPECT_EQ(parse_bytes(text), int64_t{10} << 30) << text;
  }
  for (const char* text : {"10GB", "10G", "10g"}) {
    EXPECT_EQ(parse_bytes(text), 10'000'000'000) << text;
  }
  EXPECT_EQ(parse_bytes("1.5kb"), 1500);
  for (const char* bad : {"", "0", "-1", "1.5", "G", "10X", "50%", "4611686018427387904"}) {
    EXPECT_FALSE(parse_bytes(bad)) << bad;
  }
}

TEST(Text, FormatsForPeople) {
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_bytes(3 << 19), "1.50 MiB");
  EXPECT_EQ(format_bytes(12 << 10), "12.0 KiB");
  EXPECT_EQ(format_duration(12.4), "12s");
  EXPECT_EQ(format_duration(185), "3m05s");
  EXPECT_EQ(format_duration(3720), "1h02m");
  EXPECT_EQ(format_count(12345678), "12,345,678");
  EXPECT_EQ(format_count(-123), "-123");
  EXPECT_EQ(format_count(-1234), "-1,234");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Text, MatchesPatterns) {
  EXPECT_TRUE(glob_match("layers.*.mlp.{gate,up}", "layers.12.mlp.up"));
  EXPECT_FALSE(glob_match("layers.*.mlp.{gate,up}", "layers.12.mlp.down"));
  EXPECT_TRUE(glob_match("a?c*", "abc"));
  EXPECT_FALSE(glob_match("a?c", "ac"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_TRUE(glob_match("{a,b}{c,d}", "bd"));
  EXPECT_TRUE(glob_match("x*{,a?c}*y", "xabcabdy"));
  EXPECT_FALSE(glob_match("{a,b}c", "abc"));
  EXPECT_TRUE(glob_match("{a", "{a"));
  EXPECT_TRUE(glob_match("a}", "a}"));
  std::string groups, text;  // each doubles what could be tried
  for (int i = 0; i < 64; ++i) groups += "{a,a}", text += "a";
  EXPECT_TRUE(glob_match(groups, text));
  EXPECT_FALSE(glob_match(groups, text + "b"));
}

TEST(Text, Suggests) {
  const std::vector<std::string> known = {"compact", "exact", "off"};
  EXPECT_EQ(nearest("exakt", known), "exact");
  EXPECT_EQ(nearest("zzzzzzzz", known), "");
  EXPECT_EQ(nearest("RTX4090", std::vector<std::string>{"h100", "4090"}), "4090");
  EXPECT_EQ(nearest("gpt2-small", std::vector<std::string>{"gpt", "gpt2", "gpt2-medium-x"}),
            "gpt2");
  EXPECT_EQ(suggestion("compat", known), "; did you mean `compact`?");
  EXPECT_EQ(suggestion("zzzzzzzz", known), "; known: compact exact off");
}

}  // namespace
}  // namespace compact
