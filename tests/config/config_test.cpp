// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>

#include "compact/base/check.h"
#include "compact/config/option.h"
#include "tests/config/small_config.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

TEST(Config, TomlAndJsonReadBackTheSame) {
  TrainConfig c = valid_config();
  c.set = {"slot layers.*.mlp.norm = keep", "moment * = bf16"};
  c.learning_rate = 3.5e-4;
  c.master_weights = true;
  c.tokenizer = "sentencepiece:file=a \"b\"\\c.model";
  const TemporaryFolder folder;
  spill(folder / "c.toml", config_toml(c));
  spill(folder / "c.json", config_json(c));
  for (const char* name : {"c.toml", "c.json"}) {
    TrainConfig read;
    read_config_file(read, (folder / name).string());
    for (const ConfigOption& option : config_options()) {
      EXPECT_EQ(option_text(read, option), option_text(c, option)) << name << " " << option.name;
    }
  }
}

TEST(Config, TypesHaveShortNames) {
  for (const auto& [given, name] : {std::pair("bf16", "bfloat16"),
                                    {"f32", "float32"},
                                    {"fp32", "float32"},
                                    {"bfloat16", "bfloat16"}}) {
    TrainConfig c = valid_config();
    set_option(c, "dtype", {given}, "--dtype");
    set_option(c, "optim_state_dtype", {given}, "--optim_state_dtype");
    EXPECT_EQ(c.dtype, name);
    EXPECT_EQ(c.optim_state_dtype, name);
  }
}

// TOML's integers have 64 bits and no -0.
TEST(Config, TomlKeepsNumbersThatAreNoIntegersOfItsOwn) {
  const TemporaryFolder folder;
  for (const double x : {1.8446744073709502e19, -1.8446744073709502e19, 9223372036854775808.0, -0.0,
                         1e15, 1e300, 5e-324, 4.0}) {
    TrainConfig c = valid_config();
    c.learning_rate = x;
    spill(folder / "c.toml", config_toml(c));
    TrainConfig read;
    read_config_file(read, (folder / "c.toml").string());
    EXPECT_EQ(std::bit_cast<uint64_t>(read.learning_rate), std::bit_cast<uint64_t>(x)) << x;
  }
}

TEST(Config, UnknownKeysAndWrongTypesNameThemselves) {
  TrainConfig c = valid_config();
  EXPECT_THAT(error_of([&] { set_option(c, "learning_rat", {"1"}, "--learning_rat"); }),
              HasSubstr("did you mean `learning_rate`"));
  EXPECT_THAT(error_of([&] { set_option(c, "max_steps", {"ten"}, "--max_steps"); }),
              HasSubstr("--max_steps: must be an integer, is `ten`"));
  EXPECT_THAT(error_of([&] { set_option(c, "learning_rate", {"nan"}, "--learning_rate"); }),
              HasSubstr("finite number"));
  EXPECT_EQ(error_of([&] { set_option(c, "max_steps", {""}, "--max_steps"); }),
            "--max_steps: its value is empty");
  EXPECT_EQ(error_of([&] { set_option(c, "text_field", {""}, "--text_field"); }),
            "--text_field: its value is empty");
  EXPECT_EQ(error_of([&] {
              set_option(c, "train_file", {"a", ""}, "--train_file");
            }),
            "--train_file: a value is empty");
  const TemporaryFolder folder;
  spill(folder / "bad.toml", "max_stepz = 3\n");
  EXPECT_THAT(error_of([&] { read_config_file(c, (folder / "bad.toml").string()); }),
              HasSubstr("did you mean `max_steps`"));
  spill(folder / "cut.toml", "max_steps = \n");
  EXPECT_THAT(error_of([&] { read_config_file(c, (folder / "cut.toml").string()); }),
              HasSubstr("cut.toml:1"));
}

}  // namespace
}  // namespace compact
