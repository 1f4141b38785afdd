// SPDX-License-Identifier: Apache-2.0
#include "compact/cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"

namespace compact::cli {
namespace {

using Words = std::vector<std::string>;

// The values that were given, as one text; "help"; or the error.
std::string parsed(const Words& arguments) {
  std::string one, shell;
  bool flag = false;
  Words files;
  Flags flags("compact x", "");
  flags.add_positional("SHELL", shell, "");
  flags.add("one", one, "");
  flags.add("flag", flag, "");
  flags.add("files", files, "");
  try {
    if (!flags.parse(arguments)) return "help";
  } catch (const InputError& e) {
    return e.what();
  }
  std::string text = shell;
  for (const std::string& value : flags.given({})) text += " " + value;
  return text;
}

TEST(Flags, SplitsWordsIntoFlagsAndValues) {
  const std::pair<Words, std::string> cases[] = {
      {{}, ""},
      {{"--one", "a=b"}, " --one=a=b"},
      {{"--one=a=b"}, " --one=a=b"},
      {{"--one", "-1", "--one=-1"}, " --one=-1"},
      {{"--flag"}, " --flag=true"},
      {{"--flag", "false", "bash"}, "bash --flag=false"},
      {{"--flag=false", "bash"}, "bash --flag=false"},
      {{"--files", "a", "-2", "[b,c]", "--flag"},
       " --flag=true --files=a --files=-2 --files=[b,c]"},
      {{"--files=a", "b", "--files", "a"}, " --files=a --files=b --files=a"},
      {{"--files", "a", "--", "bash"}, "bash --files=a"},
      {{"--", "--one"}, "--one"},
      {{"--other", "-h"}, "help"},
      {{"--help", "--one", "a"}, "help"},
      {{"--one"}, "--one: a value is missing"},
      {{"--one", "--flag"}, "--one: a value is missing before `--flag`"},
      {{"--one=a", "--one", "b"}, "--one is given twice, as `a` and as `b`"},
  };
  for (const auto& [arguments, expected] : cases) {
    EXPECT_EQ(parsed(arguments), expected) << testing::PrintToString(arguments);
  }
}

// As of a shell's variable that is not set.
TEST(Flags, EmptyValuesAreErrors) {
  const std::pair<Words, std::string> cases[] = {
      {{"--one", ""}, "--one"},          {{"--one="}, "--one"},
      {{"--one=", "a"}, "--one"},        {{"--one=", "--flag"}, "--one"},
      {{"--flag="}, "--flag"},           {{"--flag", ""}, "--flag"},
      {{"--files="}, "--files"},         {{"--files", "a", ""}, "--files"},
      {{"--files", "", "b"}, "--files"}, {{"--files=", "b"}, "--files"},
  };
  for (const auto& [arguments, name] : cases) {
    EXPECT_EQ(parsed(arguments),
              name + ": its value is empty; to leave it as it is, leave the flag out")
        << testing::PrintToString(arguments);
  }
  EXPECT_EQ(parsed({""}), "SHELL is empty");
}

TEST(Flags, NamesWhatIsLeft) {
  const std::pair<Words, std::string> cases[] = {
      {{"bash", "stray", "--on"}, "unexpected argument `stray`"},
      {{"-o", "stray"}, "unknown flag `-o`"},
      {{"--file=a"}, "unknown flag `--file`; did you mean `--files`?"},
      {{"--", "bash", "--one"}, "unknown flag `--`"},
  };
  for (const auto& [arguments, expected] : cases) {
    EXPECT_THAT(parsed(arguments), testing::HasSubstr(expected));
  }
}

}  // namespace
}  // namespace compact::cli
