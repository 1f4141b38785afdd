// SPDX-License-Identifier: Apache-2.0
// How commands use the table of options: their help, and the options that they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <sstream>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/cli/commands.h"
#include "compact/config/exit_codes.h"
#include "compact/config/option.h"
#include "tests/config/wrong_values.h"
#include "tests/temporary_folder.h"

namespace compact::cli {
namespace {

using ::testing::HasSubstr;

struct Said {
  int code;
  std::string out, errors;
};

Said run(const std::vector<std::string>& arguments) {
  std::ostringstream out, errors;
  std::streambuf* const was_out = std::cout.rdbuf(out.rdbuf());
  std::streambuf* const was_errors = std::cerr.rdbuf(errors.rdbuf());
  const int code = run_program(arguments);
  std::cout.rdbuf(was_out);
  std::cerr.rdbuf(was_errors);
  return {code, out.str(), errors.str()};
}

// A command, its bit, and flags without which it looks at no value.
struct Case {
  std::string name;
  uint32_t bit;
  std::vector<std::string> flags;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class OptionsOf : public ::testing::TestWithParam<Case> {};

// The words of its help, line breaks gone.
std::string words(const std::string& text) {
  std::string all;
  for (const std::string& line : split(text, '\n')) {
    for (const std::string& word : split(line, ' ')) {
      if (!word.empty()) all += " " + word;
    }
  }
  return all + " ";
}

TEST_P(OptionsOf, StandInItsHelpAsTheTableSays) {
  const auto& [name, bit, flags] = GetParam();
  const Said said = run({name, "--help"});
  EXPECT_EQ(said.code, kExitOk);
  const std::string help = words(said.out);
  int64_t taken = 0;
  for (const ConfigOption& o : config_options()) {
    const bool takes = o.commands & bit;
    taken += takes;
    if (!takes) continue;
    const bool flag = std::holds_alternative<bool TrainConfig::*>(o.member);
    const std::string values = flag ? "" : " (" + values_of(o) + ")";
    EXPECT_THAT(help, HasSubstr(" --" + o.name + " " + help_of(o, bit) + values + " "));
  }
  EXPECT_GT(taken, 0);
}

TEST_P(OptionsOf, ThatItDoesNotTakeAreUnknown) {
  const auto& [name, bit, flags] = GetParam();
  const std::string help = words(run({name, "--help"}).out);
  for (const ConfigOption& o : config_options()) {
    if (o.commands & bit || help.find(" --" + o.name + " ") != help.npos) continue;
    const Said said = run({name, "--" + o.name + "=1"});
    EXPECT_EQ(said.code, kExitInput) << o.name;
    EXPECT_THAT(said.errors, HasSubstr("unknown flag `--" + o.name + "`"));
  }
}

TEST_P(OptionsOf, RefuseWithRuleAndValueWhatTheTableDoesNotTake) {
  const auto& [name, bit, flags] = GetParam();
  for (const ConfigOption& o : config_options()) {
    if (!(o.commands & bit)) continue;
    for (const auto& [value, rule] : wrong_values(o)) {
      std::vector<std::string> arguments = {name, "--" + o.name + "=" + value};
      arguments.insert(arguments.end(), flags.begin(), flags.end());
      const Said said = run(arguments);
      EXPECT_EQ(said.code, kExitInput) << arguments[1];
      EXPECT_THAT(said.errors,
                  ::testing::AllOf(HasSubstr("--" + o.name), HasSubstr(rule), HasSubstr(value)));
      EXPECT_EQ(std::ranges::count(said.errors, '\n'), 1) << said.errors;
    }
  }
}

TEST_P(OptionsOf, AreRefusedWithAnEmptyValue) {
  const auto& [name, bit, flags] = GetParam();
  for (const std::string& line : split(run({name, "--help=words"}).out, '\n')) {
    const std::string flag = line.substr(0, line.find('\t'));
    if (flag.empty() || flag == "--prompt") continue;  // whose help says what empty is
    for (const auto& given : {std::vector{flag + "="}, {flag, ""}}) {
      std::vector<std::string> arguments = {name};
      arguments.insert(arguments.end(), given.begin(), given.end());
      arguments.insert(arguments.end(), flags.begin(), flags.end());
      const Said said = run(arguments);
      EXPECT_EQ(said.code, kExitInput) << flag;
      EXPECT_THAT(said.errors, HasSubstr(flag + ": its value is empty"));
    }
  }
}

// No run can begin with them, even where a value is taken.
const std::vector<std::string> kNoRun = {"--model=llama-tiny", "--train_file=missing.txt",
                                         "--output_dir=/dev/null/never"};

INSTANTIATE_TEST_SUITE_P(
    Commands, OptionsOf,
    ::testing::Values(Case{"train", Commands::kTrain, kNoRun},
                      Case{"compare", Commands::kCompare, kNoRun},
                      Case{"plan", Commands::kPlan, {"--model=llama-tiny"}},
                      Case{"eval", Commands::kEval, {"--model_name_or_path=missing"}},
                      Case{"generate", Commands::kGenerate, {"--model_name_or_path=missing"}},
                      Case{"visualize", Commands::kVisualize, {"--model_name_or_path=missing"}},
                      Case{"prepare", Commands::kPrepare, {"--input=x", "--output=y"}}),
    [](const auto& info) { return info.param.name; });

// Every bit is some command's, so an option that is taken at all can be given.
TEST(OptionsOfCommands, HaveNoBitWithoutACommand) {
  const uint32_t known = Commands::kRunOrPlan | Commands::kEval | Commands::kGenerate |
                         Commands::kVisualize | Commands::kPrepare;
  for (const ConfigOption& o : config_options()) EXPECT_EQ(o.commands & ~known, 0u) << o.name;
}

}  // namespace
}  // namespace compact::cli
