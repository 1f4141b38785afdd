// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <sstream>

#include "compact/train/setup.h"
#include "compact/train/trainer.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

TrainConfig valid() {
  TrainConfig c;
  c.model = "llama-tiny";
  c.train_file = {"x.txt"};
  c.output_dir = "out";
  return c;
}

TEST(Config, TomlAndJsonReadBackTheSame) {
  TrainConfig c = valid();
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
    TrainConfig c = valid();
    set_option(c, "dtype", {given}, "--dtype");
    set_option(c, "optim_state_dtype", {given}, "--optim_state_dtype");
    EXPECT_EQ(c.dtype, name);
    EXPECT_EQ(c.optim_state_dtype, name);
    EXPECT_NO_THROW(check_config(c));
    EXPECT_EQ(dtype_of(given), dtype_of(name));
  }
  EXPECT_THAT(error_of([] { dtype_of("f16"); }), HasSubstr("is `f16`"));
}

// TOML's integers have 64 bits and no -0.
TEST(Config, TomlKeepsNumbersThatAreNoIntegersOfItsOwn) {
  const TemporaryFolder folder;
  for (const double x : {1.8446744073709502e19, -1.8446744073709502e19, 9223372036854775808.0, -0.0,
                         1e15, 1e300, 5e-324, 4.0}) {
    TrainConfig c = valid();
    c.learning_rate = x;
    spill(folder / "c.toml", config_toml(c));
    TrainConfig read;
    read_config_file(read, (folder / "c.toml").string());
    EXPECT_EQ(std::bit_cast<uint64_t>(read.learning_rate), std::bit_cast<uint64_t>(x)) << x;
  }
}

TEST(Config, UnknownKeysAndWrongTypesNameThemselves) {
  TrainConfig c = valid();
  EXPECT_THAT(error_of([&] { set_option(c, "learning_rat", {"1"}, "--learning_rat"); }),
              HasSubstr("did you mean `learning_rate`"));
  EXPECT_THAT(error_of([&] { set_option(c, "max_steps", {"ten"}, "--max_steps"); }),
              HasSubstr("--max_steps: must be an integer, is `ten`"));
  EXPECT_THAT(error_of([&] { set_option(c, "learning_rate", {"nan"}, "--learning_rate"); }),
              HasSubstr("finite number"));
  const TemporaryFolder folder;
  spill(folder / "bad.toml", "max_stepz = 3\n");
  EXPECT_THAT(error_of([&] { read_config_file(c, (folder / "bad.toml").string()); }),
              HasSubstr("did you mean `max_steps`"));
  spill(folder / "cut.toml", "max_steps = \n");
  EXPECT_THAT(error_of([&] { read_config_file(c, (folder / "cut.toml").string()); }),
              HasSubstr("cut.toml:1"));
}

TEST(Config, ValuesOutOfRangeAreRefused) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"per_device_train_batch_size", "0"},
      {"block_size", "0"},
      {"dtype", "fp8"},
      {"learning_rate", "0"},
      {"optim", "adamv"},
      {"lr_scheduler_type", "cos"},
      {"adam_beta2", "1"},
      {"max_steps", "0"},
      {"validation_split", "1"},
      {"gradient_accumulation_steps", "0"},
      {"rank", "-1"},
      {"model", "llama-60"},
      {"master_weights", "true"},
      {"device", "tpu"},
      {"min_lr_ratio", "2"}};
  for (const auto& [name, value] : bad) {
    TrainConfig c = valid();
    EXPECT_THAT(error_of([&] {
                  set_option(c, name, {value}, name);
                  check_config(c);
                }),
                ::testing::AnyOf(HasSubstr("--"), HasSubstr("no model")))
        << name;
  }
  check_config(valid());
}

TEST(Setup, FlagsOverridePresetsAndSayWhereTheyDoNothing) {
  TrainConfig c = valid();
  c.preset = "compact";
  c.rank = 8;
  c.proj_type = "gaussian";
  std::vector<std::string> warnings;
  const Spec spec = make_policy(c, warnings).grad("layers.0.attn.qkv");
  EXPECT_EQ(spec.text("rank", ""), "8");
  EXPECT_EQ(spec.text("type", ""), "gaussian");
  EXPECT_TRUE(warnings.empty());
  c.preset = "exact";
  make_policy(c, warnings);
  EXPECT_EQ(warnings.size(), 2u);
  c.preset = "compact";
  c.set = {"grad layers.*.mlp.down = project:rank=4"};
  EXPECT_THAT(error_of([&] { make_policy(c, warnings); }), HasSubstr("rank"));
  c.preset = "exat";
  EXPECT_THAT(error_of([&] { make_policy(c, warnings); }), HasSubstr("did you mean `exact`"));
}

TEST(Train, BadInputLeavesNothingBehind) {
  const TemporaryFolder folder;
  spill(folder / "short.txt", "tiny");
  spill(folder / "long.txt", std::string(5000, 'a'));
  TrainConfig c = valid();
  c.cache_dir = (folder / "cache").string();
  c.output_dir = (folder / "out").string();
  std::ostringstream console;
  c.train_file = {(folder / "missing.txt").string()};
  EXPECT_THAT(error_of([&] { train(c, console); }), HasSubstr("missing.txt"));
  c.train_file = {(folder / "short.txt").string()};
  // The file that was given, not what it was made into.
  EXPECT_EQ(error_of([&] { train(c, console); }),
            c.train_file[0] + ": --block_size 256 needs at least 257 tokens, there are 5");
  c.train_file = {(folder / "long.txt").string()};
  c.preset = "compact";
  c.rank = 4096;
  EXPECT_THAT(error_of([&] { train(c, console); }), HasSubstr("4096"));
  c.rank = 0;
  c.set = {"slot layers.*.mlp.gateup = recompute"};
  EXPECT_THAT(error_of([&] { train(c, console); }),
              HasSubstr("did you mean `layers.*.mlp.gate_up`"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  c.set = {};
  spill(folder / "out", "a file");
  EXPECT_THAT(error_of([&] { train(c, console); }), HasSubstr("not a folder"));
}

TEST(Train, NonFiniteLossStopsBeforeTheUpdate) {
  const TemporaryFolder folder;
  spill(folder / "long.txt", std::string(9000, 'a'));
  TrainConfig c = valid();
  c.cache_dir = (folder / "cache").string();
  c.output_dir = (folder / "out").string();
  c.train_file = {(folder / "long.txt").string()};
  c.block_size = 16;
  c.per_device_train_batch_size = 2;
  c.max_steps = 6;
  c.learning_rate = 1e30;
  c.max_grad_norm = 0;
  std::ostringstream console;
  try {
    train(c, console);
    FAIL() << "trained on";
  } catch (const std::exception& e) {
    EXPECT_THAT(e.what(), HasSubstr("stopped before the update"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "out/model.safetensors"));
}

}  // namespace
}  // namespace compact
