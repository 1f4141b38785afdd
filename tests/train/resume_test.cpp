// SPDX-License-Identifier: Apache-2.0
// A run that is stopped anywhere and resumed gives the weights and losses of one that was not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <type_traits>
#include <variant>

#include "compact/config/option.h"
#include "compact/io/checkpoint.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/task.h"
#include "compact/train/run_state.h"
#include "tests/train/language_run.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string name;
  std::vector<std::pair<std::string, std::string>> options;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Resume : public ::testing::TestWithParam<Case> {};

TEST_P(Resume, IsBitExact) {
  const TemporaryFolder folder;
  TrainConfig whole = language_run(folder.path(), "whole");
  for (const auto& [name, value] : GetParam().options) set_option(whole, name, {value}, name);
  // After a whole update, inside an accumulation window, and in the middle of a period of 4.
  expect_bit_exact_resume(whole, {{0, 0}, {3, 1}, {4, 0}, {5, 1}});
}

// Loading takes no memory that the run itself does not take: with few tokens a step's peak is
// little more than weights, gradients and moments.
TEST_P(Resume, GoesOnUnderABudgetOfThePlannedPeak) {
  const TemporaryFolder folder;
  for (const int64_t passes : {1, 3}) {
    TrainConfig run = language_run(folder.path(), "plan" + std::to_string(passes));
    for (const auto& [name, value] : GetParam().options) set_option(run, name, {value}, name);
    run.block_size = 8;
    run.per_device_train_batch_size = 1;
    run.gradient_accumulation_steps = passes;
    run.max_steps = run.warmup_steps = 1;
    std::ostringstream console;
    ASSERT_EQ(train(run, console), kExitOk) << console.str();
    const auto results = nlohmann::json::parse(slurp(run.output_dir + "/all_results.json"));
    run.output_dir = (folder.path() / ("run" + std::to_string(passes))).string();
    run.budget = results["memory/planned_peak_bytes"].dump() + "B";
    run.max_steps = 5;
    if (passes > 1) {
      expect_bit_exact_resume(run, {{2, 0}, {3, 1}});
      continue;
    }
    run.save_steps = 2;
    ASSERT_EQ(train(run, console), kExitOk) << console.str();
    const std::string model = run.output_dir + "/model.safetensors", whole = slurp(model);
    run.resume_from_checkpoint = run.output_dir + "/checkpoint-2";
    ASSERT_EQ(train(run, console), kExitOk) << console.str();
    EXPECT_TRUE(slurp(model) == whole);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Presets, Resume,
    ::testing::Values(
        Case{"off", {{"preset", "off"}}}, Case{"exact", {{"preset", "exact"}}},
        Case{"recompute_muon", {{"preset", "recompute"}, {"optim", "muon"}}},
        Case{"compact", {{"preset", "compact"}, {"update_proj_gap", "4"}}},
        Case{"compact_muon", {{"preset", "compact"}, {"update_proj_gap", "4"}, {"optim", "muon"}}},
        Case{"compact_paper", {{"preset", "compact-paper"}, {"update_proj_gap", "4"}}},
        Case{"bf16", {{"preset", "compact"}, {"update_proj_gap", "4"}, {"dtype", "bfloat16"}}},
        Case{"frozen",
             {{"preset", "compact"},
              {"update_proj_gap", "4"},
              {"set", "grad {embedding,layers.0.*} = frozen"}}},
        Case{"gact_l1", {{"preset", "gact-l1"}}},
        Case{"gact_l2", {{"preset", "gact-l2"}, {"bits_interval", "4"}}},
        Case{"gact_l2_bf16",
             {{"preset", "gact-l2"}, {"bits_interval", "4"}, {"dtype", "bfloat16"}}},
        Case{"float8_moments",
             {{"preset", "compact"}, {"update_proj_gap", "4"}, {"optim_state_dtype", "float8"}}},
        Case{"moments_on_disk",
             {{"preset", "compact"}, {"update_proj_gap", "4"}, {"set", "moment * = f32+disk"}}},
        Case{"weights_on_disk",
             {{"preset", "compact"}, {"update_proj_gap", "4"}, {"set", "weight * = disk"}}},
        Case{"bf16_master",
             {{"preset", "exact"}, {"dtype", "bfloat16"}, {"master_weights", "true"}}}),
    [](const auto& info) { return info.param.name; });

TEST(ResumeAdapters, IsBitExact) {
  const TemporaryFolder folder;
  TrainConfig base = language_run(folder.path(), "base");
  base.max_steps = base.warmup_steps = 1;
  std::ostringstream console;
  ASSERT_EQ(train(base, console), kExitOk) << console.str();
  for (const char* dtype : {"float32", "bfloat16"}) {
    TrainConfig whole = language_run(folder.path(), dtype);
    whole.model_name_or_path = base.output_dir;
    whole.use_peft = true;
    whole.lora_r = 3;
    whole.dtype = dtype;
    expect_bit_exact_resume(whole, {{0, 0}, {3, 1}, {4, 0}});
  }
}

// Bits that come out as they would have been: measuring changed neither weights nor data nor noise.
TEST(AdaptiveBits, ProbesLeaveNoTrace) {
  const TemporaryFolder folder;
  std::string models[2];
  for (const bool adapt : {false, true}) {
    TrainConfig c = language_run(folder.path(), adapt ? "adapt" : "fixed");
    c.bits_interval = 2;
    const std::string bits = adapt ? "quantize:bits=8,adapt=8" : "quantize:bits=8";
    set_option(c, "set", {"slot layers.* = " + bits}, "set");
    std::ostringstream console;
    ASSERT_EQ(train(c, console), kExitOk) << console.str();
    EXPECT_EQ(console.str().find("bits     18 x 8") != std::string::npos, adapt) << console.str();
    EXPECT_EQ(fs::exists(folder.path() / "adapt/bits.policy"), adapt);
    models[adapt] = slurp(c.output_dir + "/model.safetensors");
  }
  EXPECT_TRUE(models[0] == models[1]);
}

// State and weights may move between runs: their bits do not change. Types may not.
TEST(ResumeChecks, StateMayLieElsewhere) {
  const TemporaryFolder folder;
  std::string models[2];
  for (const bool moves : {false, true}) {
    TrainConfig c = language_run(folder.path(), moves ? "moves" : "stays");
    c.save_steps = 3;
    std::ostringstream console;
    ASSERT_EQ(train(c, console), kExitOk) << console.str();
    if (moves) {
      EXPECT_EQ(console.str().find("on a disk"), std::string::npos) << console.str();
      c.resume_from_checkpoint = c.output_dir + "/checkpoint-3";
      set_option(c, "set", {"moment * = bf16+disk"}, "set");
      EXPECT_THAT(error_of([&] { train(c, console); }), ::testing::HasSubstr("policy differ"));
      c.set = {"moment * = f32+disk", "weight * = disk"};
      ASSERT_EQ(train(c, console), kExitOk) << console.str();
      EXPECT_THAT(console.str(), ::testing::HasSubstr(", weights on a disk "));
      EXPECT_THAT(console.str(), ::testing::HasSubstr(", state on a disk "));
      const auto results = nlohmann::json::parse(slurp(c.output_dir + "/all_results.json"));
      EXPECT_GT(results["memory/weights_outside_bytes"], 0);
      c.set.clear();  // and back
      ASSERT_EQ(train(c, console), kExitOk) << console.str();
    }
    models[moves] = slurp(c.output_dir + "/model.safetensors");
  }
  EXPECT_TRUE(models[0] == models[1]);
}

TEST(ResumeChecks, RefuseWhatChangesNumbers) {
  const TemporaryFolder folder;
  TrainConfig c = language_run(folder.path(), "run");
  c.save_steps = 3;
  std::ostringstream console;
  ASSERT_EQ(train(c, console), kExitOk);
  c.resume_from_checkpoint = "latest";
  const auto refused = [&](const char* name, const std::string& value) {
    TrainConfig other = c;
    set_option(other, name, {value}, name);
    return error_of([&] { train(other, console); });
  };
  EXPECT_NE(refused("per_device_train_batch_size", "3").find("per_device_train_batch_size"),
            std::string::npos);
  EXPECT_NE(refused("gradient_accumulation_steps", "2").find("gradient_accumulation_steps"),
            std::string::npos);
  EXPECT_NE(refused("learning_rate", "0.5").find("learning_rate"), std::string::npos);
  EXPECT_NE(refused("preset", "compact").find("policy"), std::string::npos);
  EXPECT_NE(refused("optim", "muon").find("optim"), std::string::npos);
  EXPECT_NE(refused("max_steps", "5").find("--max_steps is 5, and "), std::string::npos);
  EXPECT_EQ(refused("max_steps", "6"), "");
  c.budget = "1GiB";
  EXPECT_NE(refused("preset", "auto").find("--preset is auto, but was "), std::string::npos);
}

// Gives it another value, whether or not a run could have it.
void change(TrainConfig& config, const ConfigOption& option) {
  std::visit(
      [&](auto member) {
        auto& value = config.*member;
        using T = std::remove_cvref_t<decltype(value)>;
        if constexpr (std::is_same_v<T, bool>) {
          value = !value;
        } else if constexpr (std::is_same_v<T, std::string>) {
          value += "x";
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          value.push_back("x");
        } else {
          value += 1;
        }
      },
      option.member);
}

TEST(ResumeChecks, EveryOptionFollowsTheRuleOfItsRow) {
  const TemporaryFolder folder;
  TrainConfig c = language_run(folder.path(), "run");
  c.max_steps = 1;
  c.warmup_steps = 0;
  c.save_steps = 1;
  std::ostringstream console;
  ASSERT_EQ(train(c, console), kExitOk) << console.str();
  std::vector<std::string> warnings;
  const Task task = task_named(c.task).open(c, {}, warnings);
  const Policy policy = make_policy(c, warnings);
  const auto refusal = [&](const TrainConfig& now) {
    warnings.clear();
    return error_of(
        [&] { check_same_run(c.output_dir + "/checkpoint-1", now, 1, policy, task, warnings); });
  };
  EXPECT_EQ(refusal(c), "");
  EXPECT_THAT(warnings, ::testing::IsEmpty());
  for (const ConfigOption& option : config_options()) {
    TrainConfig other = c;
    change(other, option);
    const std::string error = refusal(other), named = "--" + option.name + " is ";
    EXPECT_EQ(error.starts_with(named), option.resume == ResumeRule::kKept) << option.name << error;
    EXPECT_EQ(error.empty(), option.resume != ResumeRule::kKept) << option.name << error;
    const bool warned = warnings.size() == 1 && warnings[0].starts_with(named);
    EXPECT_EQ(warned, option.resume == ResumeRule::kWarned) << option.name;
    EXPECT_EQ(warnings.empty(), option.resume != ResumeRule::kWarned) << option.name;
  }
}

TEST(ResumeChecks, FallsBackToTheNewestValidCheckpoint) {
  const TemporaryFolder folder;
  TrainConfig c = language_run(folder.path(), "run");
  c.save_steps = 3;
  c.save_total_limit = 2;
  std::ostringstream console;
  ASSERT_EQ(train(c, console), kExitOk);
  const std::string expected = slurp(folder / "run/model.safetensors");
  std::string damaged = slurp(folder / "run/checkpoint-6/model.safetensors");
  damaged[damaged.size() / 2] ^= 1;
  spill(folder / "run/checkpoint-6/model.safetensors", damaged);
  c.resume_from_checkpoint = "latest";
  ASSERT_EQ(train(c, console), kExitOk);
  EXPECT_NE(console.str().find("resumed from " + (folder / "run/checkpoint-3").string()),
            std::string::npos);
  EXPECT_TRUE(slurp(folder / "run/model.safetensors") == expected);
}

}  // namespace
}  // namespace compact
