// SPDX-License-Identifier: Apache-2.0
// Runs of the classification tasks: resumed bit for bit, evaluated alike, within budgets.
#include "compact/tasks/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "compact/base/check.h"
#include "compact/plan/search.h"
#include "compact/tasks/evaluate.h"
#include "tests/temporary_folder.h"
#include "tests/train/task_runs.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

class TaskResume : public ::testing::TestWithParam<ResumeCase> {};

TEST_P(TaskResume, IsBitExact) {
  const TemporaryFolder folder;
  TrainConfig whole = GetParam().make(folder.path(), "whole");
  if (!fs::exists(whole.train_file[0])) GTEST_SKIP() << "no " << whole.train_file[0];
  whole.preset = GetParam().preset;
  expect_bit_exact_resume(whole, {{0, 0}, {2, 0}, {4, 0}});
}

INSTANTIATE_TEST_SUITE_P(Tasks, TaskResume,
                         ::testing::Values(ResumeCase{"images_off", images, "off"},
                                           ResumeCase{"images_gact_l2", images, "gact-l2"},
                                           ResumeCase{"graphs_exact", graphs, "exact"},
                                           ResumeCase{"graphs_gact_l2", graphs, "gact-l2"},
                                           ResumeCase{"nodes_gact_l2", nodes, "gact-l2"}),
                         [](const auto& info) { return info.param.name; });

// Choosing bits moves neither weights nor statistics of norms, data order or dropout.
TEST(TaskBits, ProbesLeaveNoTrace) {
  const TemporaryFolder folder;
  for (const MakeConfig make : {MakeConfig(images), MakeConfig(graphs)}) {
    std::string models[2];
    for (const bool adapt : {false, true}) {
      TrainConfig c = make(folder.path(), adapt ? "adapt" : "fixed");
      c.overwrite_output_dir = true;
      c.preset = "off";
      c.set = {adapt ? "slot * = quantize:bits=8,adapt=8" : "slot * = quantize:bits=8"};
      std::ostringstream console;
      ASSERT_EQ(train(c, console), kExitOk) << console.str();
      EXPECT_EQ(console.str().find("bits  ") != std::string::npos, adapt) << console.str();
      models[adapt] = slurp(c.output_dir + "/model.safetensors");
    }
    EXPECT_TRUE(models[0] == models[1]);
  }
}

// A whole graph without dropout has a gradient of its own to be told from rounding: that of half of
// its targets differs from that of the others.
TEST(TaskBits, AreGuardedWithoutDropout) {
  const TemporaryFolder folder;
  TrainConfig c = graphs(folder.path(), "run");
  c.dropout = 0;
  c.preset = "off";
  c.set = {"slot * = quantize:bits=2,adapt=2"};
  c.bits_guard = 1e-6;
  std::ostringstream console;
  ASSERT_EQ(train(c, console), kExitOk) << console.str();
  EXPECT_THAT(console.str(), HasSubstr("of the gradient's own variance, raised by"));
}

TEST(TaskSplit, IsSaidToTakeNoEffectBesideValidationData) {
  const TemporaryFolder folder;
  for (const MakeConfig make : {MakeConfig(images), MakeConfig(graphs)}) {
    TrainConfig c = make(folder.path(), "run");
    std::vector<std::string> warnings;
    const Task drawn = task_named(c.task).open(c, {}, warnings);
    EXPECT_THAT(warnings, ::testing::IsEmpty()) << c.task;
    EXPECT_EQ(drawn.validation->size(), (drawn.train->size() + drawn.validation->size()) / 4);
    c.validation_file = c.train_file;
    const Task given = task_named(c.task).open(c, {}, warnings);
    EXPECT_THAT(warnings, ::testing::ElementsAre(
                              "--validation_split takes no effect: there is a --validation_file"));
    EXPECT_EQ(given.train->size(), given.validation->size()) << c.task;
  }
}

// A folder's graph network takes another dropout, and no other sizes.
TEST(TaskGraphs, OptionsOfAFolder) {
  const TemporaryFolder folder;
  TrainConfig c = graphs(folder.path(), "run");
  c.max_steps = 1;
  std::ostringstream console;
  ASSERT_EQ(train(c, console), kExitOk) << console.str();
  c.model.clear();
  c.model_name_or_path = c.output_dir;
  c.dropout = 0.25;
  c.hidden_size = 32;
  c.num_hidden_layers = 3;
  std::vector<std::string> warnings;
  const Task task = task_named(c.task).open(c, {}, warnings);
  EXPECT_EQ(task.config["dropout"], 0.25);
  EXPECT_THAT(warnings, ::testing::ElementsAre(HasSubstr("--hidden_size takes no effect"),
                                               HasSubstr("--num_hidden_layers takes no effect")));
  warnings.clear();
  c.optim = "muon";
  c.projected_learning_rate = 0.1;
  make_network(c, task, {}, at::kCPU, warnings);
  EXPECT_THAT(warnings,
              ::testing::IsSupersetOf({HasSubstr("--optim muon takes no effect"),
                                       HasSubstr("--projected_learning_rate takes no effect")}));
}

// A preset that quantizes takes the most bits that fit; what cannot fit is said with what would.
TEST(TaskBudget, BoundsPresetsThatQuantize) {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& preset, int64_t budget) {
    TrainConfig c = images(folder.path(), "run");
    c.overwrite_output_dir = true;
    c.preset = preset;
    c.max_steps = 2;
    c.per_device_train_batch_size = 32;
    c.gradient_accumulation_steps = 1;
    if (budget > 0) c.budget = std::to_string(budget) + "B";
    std::ostringstream console;
    EXPECT_EQ(train(c, console), kExitOk) << console.str();
    const auto results = nlohmann::json::parse(slurp(folder / "run/all_results.json"));
    return std::pair(results["memory/peak_bytes"].get<int64_t>(), console.str());
  };
  const auto [eight, unused] = run("gact-l1.1", 0);
  const auto [four, unused_too] = run("gact-l1", 0);
  ASSERT_LT(four, eight);
  const auto [bounded, text] = run("gact-l1.1", (four + eight) / 2);
  EXPECT_EQ(bounded, four);
  EXPECT_THAT(text, HasSubstr("in fewer bits it takes"));
  // Chosen bits are of as many bytes, which may lie elsewhere at the peak: all the same it holds.
  for (const auto& [adaptive, uniform] :
       {std::pair{"gact-l2", "gact-l1"}, {"gact-l2.2", "gact-l1.2"}}) {
    const int64_t budget = run(uniform, 0).first + 4096;  // beside what plans do not count
    const auto [peak, how] = run(adaptive, budget);
    EXPECT_LE(peak, budget);
    EXPECT_THAT(how, HasSubstr("bits  "));
  }
  TrainConfig c = images(folder.path(), "none");
  c.per_device_train_batch_size = 32;
  c.preset = "off";
  c.budget = std::to_string((four + eight) / 2) + "B";
  // The options of --preset auto for a convolution do not matter here.
  for (const char* allow : {"lossless", "project"}) {
    c.allow = allow;
    std::ostringstream console;
    EXPECT_THAT(
        error_of<BudgetError>([&] { train(c, console); }),
        testing::AllOf(HasSubstr("--preset gact-l1"), HasSubstr("--per_device_train_batch_size")));
    EXPECT_FALSE(fs::exists(c.output_dir));
  }
}

// Images under --preset auto: the same weights in less memory.
TEST(TaskAuto, StaysUnderTheBudgetAndChangesNoBit) {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& preset, int64_t budget) {
    TrainConfig c = images(folder.path(), preset);
    c.per_device_train_batch_size = 16;
    c.preset = preset;
    c.cache_dir = (folder.path() / "cache").string();
    if (budget > 0) c.budget = std::to_string(budget) + "B";
    std::ostringstream console;
    EXPECT_EQ(train(c, console), kExitOk) << console.str();
    const auto results = nlohmann::json::parse(slurp(c.output_dir + "/all_results.json"));
    return results["memory/peak_bytes"].get<int64_t>();
  };
  const int64_t budget = run("off", 0) * 7 / 10;
  EXPECT_LE(run("auto", budget), budget);
  EXPECT_THAT(slurp(folder / "auto/policy.txt"), HasSubstr(" = recompute"));
  EXPECT_TRUE(slurp(folder / "auto/model.safetensors") == slurp(folder / "off/model.safetensors"));
}

// A damaged config.json is named.
TEST(TaskErrors, OfModelFolders) {
  const TemporaryFolder folder;
  TrainConfig c = images(folder.path(), "run");
  c.max_steps = 1;
  std::ostringstream console;
  ASSERT_EQ(train(c, console), kExitOk) << console.str();
  const std::string file = (folder.path() / "run/config.json").string();
  const auto whole = nlohmann::json::parse(slurp(file));
  const auto error = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = whole;
    changed[key] = value;
    spill(file, changed.dump());
    return error_of([&] { evaluate(evaluation_of(c, c.train_file, 4)); });
  };
  EXPECT_EQ(error("classes", whole["classes"]), "");
  EXPECT_THAT(error("blocks", {-1, 3, 3}), HasSubstr("config.json: blocks must be from 1"));
  EXPECT_THAT(error("blocks", {1000000000, 3, 3}), HasSubstr("is 1e+09"));
  EXPECT_THAT(error("width", int64_t{1} << 62), HasSubstr("config.json: width"));
  EXPECT_THAT(error("classes", int64_t{1} << 40), HasSubstr("config.json: classes"));
  EXPECT_THAT(error("image_std", {0, 0, 0}), HasSubstr("config.json: image_std"));
  EXPECT_THAT(error("image_mean", {0}), HasSubstr("config.json: image_mean"));
  EXPECT_THAT(error("model_type", 3), HasSubstr("config.json: model_type"));
  EXPECT_THAT(error("class_names", {"a", "b"}), HasSubstr("config.json: class_names"));
}

TEST(TaskErrors, NameTheRule) {
  const TemporaryFolder folder;
  const auto error = [&](const std::function<void(TrainConfig&)>& change) {
    TrainConfig c = images(folder.path(), "run");
    change(c);
    std::ostringstream console;
    return error_of([&] { train(c, console); });
  };
  EXPECT_THAT(error([](TrainConfig& c) { c.task = "image-classificatio"; }),
              HasSubstr("did you mean `image-classification`"));
  EXPECT_THAT(error([](TrainConfig& c) { c.model = "resnet21"; }), HasSubstr("no model"));
  EXPECT_THAT(error([](TrainConfig& c) { c.preset = "compact"; }),
              HasSubstr("projects gradients of"));
  EXPECT_THAT(error([&](TrainConfig& c) {
                c = graphs(folder.path(), "run");
                c.preset = "auto";
                c.budget = "1GiB";
              }),
              HasSubstr("--preset auto"));
  EXPECT_THAT(error([](TrainConfig& c) { c.width_mult = 0; }), HasSubstr("--width_mult"));
  EXPECT_THAT(error([](TrainConfig& c) { c.width_mult = 1e300; }), HasSubstr("--width_mult"));
  EXPECT_THAT(error([](TrainConfig& c) { c.gradient_accumulation_steps = INT64_MAX; }),
              HasSubstr("--gradient_accumulation_steps"));
  EXPECT_THAT(error([](TrainConfig& c) { c.per_device_train_batch_size = INT64_MAX; }),
              HasSubstr("--per_device_train_batch_size"));
  EXPECT_THAT(error([](TrainConfig& c) {
                c.max_steps = -1;
                c.num_train_epochs = 1e300;
              }),
              HasSubstr("--num_train_epochs"));
  EXPECT_THAT(error([](TrainConfig& c) { c.label_smoothing_factor = 1; }),
              HasSubstr("--label_smoothing_factor"));
  EXPECT_THAT(error([](TrainConfig& c) {
                c.task = "node-classification";
                c.model = "gcn";
              }),
              HasSubstr("train.bin"));
}

}  // namespace
}  // namespace compact
