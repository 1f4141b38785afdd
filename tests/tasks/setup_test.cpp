// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "compact/config/option.h"
#include "compact/tasks/config_check.h"
#include "compact/tasks/setup.h"
#include "tests/config/small_config.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

TEST(Setup, TypesHaveShortNames) {
  for (const char* name : {"bf16", "bfloat16", "f32", "fp32", "float32"}) {
    TrainConfig c = valid_config();
    set_option(c, "dtype", {name}, "--dtype");
    EXPECT_NO_THROW(check_config(c));
    EXPECT_EQ(dtype_of(name), name[0] == 'b' ? at::kBFloat16 : at::kFloat);
  }
  EXPECT_THAT(error_of([] { dtype_of("f16"); }), HasSubstr("is `f16`"));
}

TEST(Setup, ValuesOutOfRangeAreRefused) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"per_device_train_batch_size", "0"},
      {"block_size", "0"},
      {"dtype", "fp8"},
      {"learning_rate", "-2"},
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
    TrainConfig c = valid_config();
    EXPECT_THAT(error_of([&] {
                  set_option(c, name, {value}, name);
                  check_config(c);
                }),
                ::testing::AnyOf(HasSubstr("--"), HasSubstr("no model")))
        << name;
  }
  check_config(valid_config());
}

TEST(Setup, FlagsOverridePresetsAndSayWhereTheyDoNothing) {
  TrainConfig c = valid_config();
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
  warnings.clear();
  c.bits_guard = 0;
  for (const char* preset : {"gact-l2", "gact-l1", "auto"}) {
    c.preset = preset;
    say_unused_bits(c, c.preset == "auto" ? Policy() : Policy::preset(preset), warnings);
  }
  EXPECT_THAT(warnings, ::testing::ElementsAre(
                            "--bits_guard takes no effect: preset `gact-l1` leaves no bits "
                            "open (`adapt=N`)",
                            "--bits_guard takes no effect: preset `auto` leaves no bits "
                            "open (`adapt=N`)"));
  c.preset = "compact";
  c.set = {"grad layers.*.mlp.down = project:rank=4"};
  EXPECT_THAT(error_of([&] { make_policy(c, warnings); }), HasSubstr("rank"));
  c.preset = "exat";
  EXPECT_THAT(error_of([&] { make_policy(c, warnings); }), HasSubstr("did you mean `exact`"));
}

}  // namespace
}  // namespace compact
