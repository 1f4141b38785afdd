// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/stop_strings.h"

#include <gtest/gtest.h>

#include "compact/base/check.h"

namespace compact {
namespace {

// The text before the first of the strings, whatever pieces it comes in, and nothing of a string is
// given out before it is known whether it is one.
TEST(StopStrings, EndTheTextWhereverPiecesPart) {
  struct {
    const char *text, *want;
    std::vector<std::string> stop;
    bool met = true;
  } const cases[] = {
      {"one two three", "one ", {"two"}},
      {"one two three", "one ", {"three", "two t"}},
      {"aaab", "a", {"aab"}},
      {"ababac!", "ab", {"abac"}},
      {"ab", "", {"ab", "b"}},
      {"one tw", "one tw", {"two"}, false},
      {"one\n\nUser: two", "one\n\n", {"\n\nUser:", "User"}},
      {"日本語", "日", {"本"}},
      {"anything", "anything", {}, false},
  };
  for (const auto& c : cases) {
    const std::string text = c.text;
    for (size_t size = 1; size <= text.size(); ++size) {
      StopStrings stop(c.stop);
      std::string got;
      for (size_t at = 0; at < text.size() && !stop.met(); at += size) {
        got += stop.add(text.substr(at, size));
        EXPECT_TRUE(std::string(c.want).starts_with(got)) << text << " by " << size;
      }
      got += stop.finish();
      EXPECT_EQ(got, c.want) << text << " by " << size;
      EXPECT_EQ(stop.met(), c.met) << text << " by " << size;
    }
  }
  StopStrings far({"xyz"});
  EXPECT_EQ(far.add("abcx"), "abc");  // what cannot become one is not held back
  EXPECT_EQ(far.add("q"), "xq");
  EXPECT_THROW(StopStrings({""}), InputError);
}

}  // namespace
}  // namespace compact
