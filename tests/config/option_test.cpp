// SPDX-License-Identifier: Apache-2.0
// Walks the table of options.
#include "compact/config/option.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "compact/base/check.h"
#include "tests/config/wrong_values.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

// A row as a new flag would have it, with and without its rule.
template <class Option>
concept CompilesWithARule = requires {
  Option{.name = "new", .member = &TrainConfig::seed, .resume = ResumeRule::kKept};
};
template <class Option>
concept CompilesWithoutARule = requires {
  Option{.name = "new", .member = &TrainConfig::seed};
};
static_assert(CompilesWithARule<ConfigOption>);
static_assert(!CompilesWithoutARule<ConfigOption>);

// Whether the option is an int64_t or a double.
bool is_number(const ConfigOption& o) {
  return std::holds_alternative<int64_t TrainConfig::*>(o.member) ||
         std::holds_alternative<double TrainConfig::*>(o.member);
}

TEST(Options, RowsAreWhole) {
  std::set<std::string> names;
  const auto rows = config_options();
  for (const ConfigOption& o : rows) {
    EXPECT_TRUE(names.insert(o.name).second) << o.name << " comes twice";
    EXPECT_EQ(std::ranges::count(rows, o.member, &ConfigOption::member), 1) << o.name;
    EXPECT_FALSE(o.help.empty()) << o.name;
    EXPECT_FALSE(o.group.empty()) << o.name;
    const bool flag = std::holds_alternative<bool TrainConfig::*>(o.member);
    EXPECT_EQ(values_of(o).empty(), flag) << o.name << " says what it takes unless it is a flag";
    EXPECT_EQ(is_number(o), o.range.least > -ValueRange::kNone)
        << o.name << ": numbers have ranges";
    EXPECT_NE(o.commands, 0u) << o.name << " is taken by no command";
    for (const auto& other : o.elsewhere) {
      EXPECT_EQ(other.commands & ~o.commands, 0u) << o.name << " has a text for no command";
    }
    EXPECT_TRUE(o.projects.empty() || o.resume == ResumeRule::kPolicy) << o.name;
  }
}

TEST(Options, RefuseWhatTheirRowsDoNotTake) {
  int64_t refused = 0;
  for (const ConfigOption& o : config_options()) {
    for (const auto& [value, rule] : wrong_values(o)) {
      TrainConfig c;
      set_option(c, o.name, {value}, o.name);
      EXPECT_THAT(error_of([&] { check_values(c); }),
                  ::testing::AllOf(::testing::StartsWith("--" + o.name), HasSubstr(rule),
                                   HasSubstr(value)));
      ++refused;
    }
    EXPECT_TRUE(!is_number(o) || !wrong_values(o).empty()) << o.name;
    for (const std::string& value : right_values(o)) {
      TrainConfig c;
      set_option(c, o.name, {value}, o.name);
      EXPECT_EQ(error_of([&] { check_values(c); }), "") << o.name << " " << value;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(Options, SayTheirRulesInWords) {
  const auto refusal = [](const char* name, const char* value) {
    TrainConfig c;
    set_option(c, name, {value}, name);
    return error_of([&] { check_values(c); });
  };
  EXPECT_EQ(refusal("max_steps", "0"), "--max_steps must be positive, or -1, is 0");
  EXPECT_EQ(refusal("dropout", "1"), "--dropout must be in [0, 1), or -1, is 1");
  EXPECT_EQ(refusal("learning_rate", "-1e-3"),
            "--learning_rate must be at least 0, or -1, is -0.001");
  EXPECT_EQ(refusal("block_size", "0"), "--block_size must be at least 1, is 0");
  EXPECT_EQ(refusal("min_lr_ratio", "2"), "--min_lr_ratio must be from 0 to 1, is 2");
  EXPECT_EQ(refusal("width_mult", "17"), "--width_mult must be positive and at most 16, is 17");
  EXPECT_EQ(refusal("per_device_train_batch_size", "9223372036854775807"),
            "--per_device_train_batch_size must be from 1 to 1073741824, is 9223372036854775807");
  EXPECT_EQ(refusal("optim", "adamv"), "--optim: no such value `adamv`; did you mean `adamw`?");
  EXPECT_EQ(
      refusal("budget", "1.5"),
      "--budget must be a positive number of bytes, as 10GiB, 10GB or 13926664; only --presets of "
      "a comparison take a part, as 50%, is `1.5`");
}

TEST(Options, SayWhatTheyTakeFromTheirRows) {
  const auto values = [](const char* name) {
    return values_of(*std::ranges::find(config_options(), name, &ConfigOption::name));
  };
  EXPECT_EQ(values("dtype"), "float32 (f32, fp32), bfloat16 (bf16)");
  EXPECT_EQ(values("lr_scheduler_type"), "cosine, linear, constant, wsd, step");
  EXPECT_EQ(values("matmul_precision"), "highest, high");
  EXPECT_EQ(values("validation_split"), "0 <= x < 1");
  EXPECT_EQ(values("min_lr_ratio"), "0 <= x <= 1");
  EXPECT_EQ(values("learning_rate"), "X");
  EXPECT_EQ(values("threads"), "N");
}

TEST(Options, OfOtherTasksAreSaidToTakeNoEffect) {
  TrainConfig c;
  EXPECT_TRUE(ignored_options(c).empty());
  c.augment = false;
  c.block_size = 64;
  c.seed = 7;
  EXPECT_THAT(ignored_options(c),
              ::testing::ElementsAre("--augment takes no effect: it is for image-classification"));
  c.task = "image-classification";
  EXPECT_THAT(ignored_options(c),
              ::testing::ElementsAre("--block_size takes no effect: it is for language-modeling, "
                                     "prompt-completion, preference"));
}

TEST(Options, OfOtherValuesAreSaidToTakeNoEffect) {
  TrainConfig c;
  c.momentum = 0;
  c.allow = "quantize";
  c.metric_for_best_model = "loss";
  EXPECT_THAT(ignored_options(c),
              ::testing::ElementsAre("--momentum takes no effect: it is for --optim sgd",
                                     "--allow takes no effect: it is for --preset auto",
                                     "--metric_for_best_model takes no effect: it is for "
                                     "--load_best_model_at_end true"));
  c.optim = "sgd", c.preset = "auto", c.load_best_model_at_end = true;
  EXPECT_TRUE(ignored_options(c).empty());
  c = {};
  c.max_steps = 10, c.num_train_epochs = 3, c.eval_steps = 5, c.eval_epochs = 1;
  c.lr_scheduler_type = "constant", c.min_lr_ratio = 0.1, c.optim = "sgd", c.adam_beta1 = 0.8;
  EXPECT_THAT(
      ignored_options(c),
      ::testing::ElementsAre(
          "--num_train_epochs takes no effect: it is for --max_steps -1",
          "--min_lr_ratio takes no effect: it is for --lr_scheduler_type cosine, linear, wsd, step",
          "--adam_beta1 takes no effect: it is for --optim adamw, muon, adam",
          "--eval_steps takes no effect: it is for --eval_epochs 0"));
  c.max_steps = -1, c.lr_scheduler_type = "wsd", c.optim = "adam", c.eval_epochs = 0;
  EXPECT_TRUE(ignored_options(c).empty());
}

// The values in `beside` are values that the other option can have, and so are all but those that
// the option is not for.
TEST(Options, BesideOthersNameTheirValues) {
  for (const ConfigOption& option : config_options()) {
    const auto& [name, values] = option.beside;
    if (name.empty()) continue;
    const auto other = std::ranges::find(config_options(), name, &ConfigOption::name);
    ASSERT_NE(other, config_options().end()) << option.name;
    for (const std::string& value : values) {
      TrainConfig c;
      set_option(c, name, {value}, name);
      EXPECT_NO_THROW(check_values(c)) << option.name;
    }
    if (values.size() > 1) {
      EXPECT_EQ(values.size() + 1, other->choices.size()) << option.name;
    }
  }
}

}  // namespace
}  // namespace compact
