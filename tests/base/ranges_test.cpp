// SPDX-License-Identifier: Apache-2.0
#include "compact/base/ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Ranges, AreReadOrRefused) {
  const auto range = parse_range("0..13");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, 0);
  EXPECT_EQ(range->last, 13);
  EXPECT_TRUE(parse_range("7..7"));
  EXPECT_TRUE(parse_range("0..999999999999999999"));
  for (const char* bad : {"", "3", "..", "3..", "..3", "3..1", "a..b", "-1..3", "1..2..3", "01..3",
                          "1...3", " 1..3", "0..1000000000000000000", "0..99999999999999999999"}) {
    EXPECT_FALSE(parse_range(bad)) << bad;
  }
}

TEST(Ranges, NumbersInPatterns) {
  const auto matched = [](const char* pattern, int64_t below) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < below; ++i) {
      if (glob_match(pattern, cat("layers.", i, ".mlp"))) all.push_back(i);
    }
    return all;
  };
  EXPECT_THAT(matched("layers.{0..3}.mlp", 40), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(matched("layers.{8..11,2,30..31}.*", 400),
              testing::ElementsAre(2, 8, 9, 10, 11, 30, 31));
  EXPECT_EQ(matched("layers.{0..999999999}.mlp", 300).size(), 300);
  EXPECT_THAT(matched("layers.{12..12}.mlp", 300), testing::ElementsAre(12));
  EXPECT_FALSE(glob_match("layers.{0..20}.mlp", "layers.07.mlp"));
  EXPECT_FALSE(glob_match("layers.{0..20}.mlp", "layers.-1.mlp"));
  EXPECT_FALSE(glob_match("layers.{0..20}.mlp", "layers..mlp"));
  // A number may end anywhere: 1, then 23, or 12, then 3.
  EXPECT_TRUE(glob_match("{1..12}{3..3}", "123"));
  EXPECT_TRUE(glob_match("{1..9}{20..30}", "123"));
  EXPECT_FALSE(glob_match("{1..9}{3..3}", "123"));
  EXPECT_FALSE(glob_match("{0..999999999999999999}", "1234567890123456789012345"));
  // Text that is not a range matches itself.
  EXPECT_TRUE(glob_match("{3..1,x}", "3..1"));
  std::string ranges, text;
  for (int i = 0; i < 200; ++i) ranges += "{0..999999999999}", text += "7";
  EXPECT_TRUE(glob_match(ranges, text));
  EXPECT_FALSE(glob_match(ranges, text + "x"));
}

TEST(Ranges, MalformedOnesNameThemselves) {
  for (const char* sound :
       {"", "a.*", "{a,b}", "layers.{0..13,15}.*", "a..b", "{0..1", "x.{,0..1}"}) {
    EXPECT_NO_THROW(check_ranges(sound, "here")) << sound;
  }
  for (const char* bad : {"{3..1}", "layers.{0..}.x", "{a,..3}", "{0..1}.{1..2..3}", "{a..b}",
                          "{0..1000000000000000000}"}) {
    EXPECT_THAT(error_of([&] { check_ranges(bad, "here"); }),
                AllOf(HasSubstr("here: "), HasSubstr(bad), HasSubstr("FIRST..LAST")));
  }
}

TEST(Ranges, ListsAreWrittenShort) {
  const auto written = [](const std::vector<std::string>& names) { return braced(names); };
  EXPECT_EQ(written({"3"}), "3");
  EXPECT_EQ(written({"0", "1"}), "{0,1}");
  EXPECT_EQ(written({"0", "1", "2"}), "{0..2}");
  EXPECT_EQ(written({"0", "1", "2", "3", "7", "9", "10", "11"}), "{0..3,7,9..11}");
  EXPECT_EQ(written({"a", "0", "1", "2", "b"}), "{a,0..2,b}");
  EXPECT_EQ(written({"2", "1", "0"}), "{2,1,0}");
  EXPECT_EQ(written({"08", "09", "10", "11", "12"}), "{08,09,10..12}");
  EXPECT_EQ(written({}), "");
}

}  // namespace
}  // namespace compact
