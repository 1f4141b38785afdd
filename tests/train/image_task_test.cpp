// SPDX-License-Identifier: Apache-2.0
// Runs on images: evaluated alike, scaled to the model's size, with a head for other classes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compact/io/model_weights.h"
#include "compact/plan/search.h"
#include "compact/tasks/evaluate.h"
#include "tests/temporary_folder.h"
#include "tests/train/task_runs.h"

namespace compact {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ImageTask, OfAFolderIsThatOfTheRun) {
  const TemporaryFolder folder;
  TrainConfig c = images(folder.path(), "run");
  write_images(folder / "held.bin", 20);
  c.validation_file = {(folder / "held.bin").string()};
  c.test_file = c.validation_file;
  std::ostringstream console;
  ASSERT_EQ(train(c, console), kExitOk) << console.str();
  const auto results = nlohmann::json::parse(slurp(folder / "run/all_results.json"));
  EXPECT_EQ(results["eval_accuracy"], results["test_accuracy"]);
  EXPECT_EQ(results["eval_images"], 20);
  const auto [results_of, unit, warnings] = evaluate(evaluation_of(c, c.validation_file, 0));
  ASSERT_EQ(results_of.size(), 1u);
  const EvalResult& r = results_of.front().second;
  EXPECT_EQ(unit, "images");
  EXPECT_EQ(r.loss, results["eval_loss"].get<double>());
  EXPECT_EQ(*r.accuracy, results["eval_accuracy"].get<double>());
  EXPECT_GE(*r.in_five, *r.accuracy);
}

TEST(ImageTask, ImagesOfOtherClassesTrainANewHead) {
  const TemporaryFolder folder;
  const auto model = model_named("resnet20", ModelUse::kImages).config->clone();
  ModelShape shape = model->shape();
  shape.hidden = 4;
  shape.classes = 3;
  shape.labels = {"cat", "dog", "bird"};
  shape.mean = shape.deviation = {0.5, 0.5, 0.5};
  model->fit(shape);
  fs::create_directory(folder / "model");
  write_model_folder(folder / "model", model->build(Policy(), {})->named_tensors(),
                     model->to_json("float32"));
  TrainConfig c = images(folder.path(), "run");
  c.model.clear();
  c.width_mult = 1;
  c.model_name_or_path = (folder / "model").string();
  c.max_steps = 1;
  std::ostringstream console;
  EXPECT_EQ(train(c, console), kExitOk) << console.str();
  EXPECT_THAT(console.str(), HasSubstr("was trained for other classes: a new head is trained"));
  EXPECT_THAT(console.str(), HasSubstr("has no linear.weight and 1 more: new ones are trained"));
  const auto written = nlohmann::json::parse(slurp(folder / "run/config.json"));
  EXPECT_EQ(written["classes"], 10);
}

// Records have numbers alone, which a model with names can only take for places among these.
TEST(ImageTask, NumbersAreSaidToBePlacesAmongNames) {
  const TemporaryFolder folder;
  const auto model = model_named("resnet20", ModelUse::kImages).config->clone();
  ModelShape shape = model->shape();
  shape.hidden = 4;
  shape.labels.clear();
  for (int i = 0; i < 10; ++i) shape.labels.push_back(std::string("class ") + char('j' - i));
  shape.classes = 10;
  shape.mean = shape.deviation = {0.5, 0.5, 0.5};
  model->fit(shape);
  fs::create_directory(folder / "model");
  write_model_folder(folder / "model", model->build(Policy(), {})->named_tensors(),
                     model->to_json("float32"));
  const TrainConfig run = images(folder.path(), "run");
  TrainConfig c = evaluation_of(run, run.train_file, 0);
  c.model_name_or_path = (folder / "model").string();
  EXPECT_THAT(evaluate(c).warnings,
              testing::Contains(testing::AllOf(
                  HasSubstr("train.bin has numbers of classes, the model names (class j, ...)"),
                  HasSubstr("number 0 is taken to be class j"))));
  c.task = run.task;
  c.width_mult = 2;
  c.train_file = run.train_file;
  std::vector<std::string> warnings;
  task_named("image-classification").open(c, {}, warnings);
  EXPECT_THAT(warnings, testing::Contains(HasSubstr("--width_mult takes no effect")));
}

// One image would leave a batch norm's channels one value each, which is refused.
TEST(ImageTask, SmallerBatchesAreOfferedWhereTheSmallestIsRefused) {
  const TemporaryFolder folder;
  TrainConfig c = images(folder.path(), "run");
  c.image_size = 4;  // last maps of 1 x 1
  c.preset = "exact";
  c.max_steps = 1;
  c.per_device_train_batch_size = 8;
  std::ostringstream console;
  ASSERT_EQ(train(c, console), kExitOk) << console.str();
  const auto results = nlohmann::json::parse(slurp(folder / "run/all_results.json"));
  c.budget = results["memory/planned_peak_bytes"].dump() + "B";
  c.output_dir = (folder / "other").string();
  c.per_device_train_batch_size = 32;
  EXPECT_THAT(error_of<BudgetError>([&] { train(c, console); }),
              HasSubstr("--per_device_train_batch_size 8 ("));
}

// The size of images is kept with the model, and others are scaled to it.
TEST(ImageTask, ImagesAreScaledToTheModelsSize) {
  const TemporaryFolder folder;
  TrainConfig c = images(folder.path(), "run");
  write_images(folder / "held.bin", 20);
  c.validation_file = {(folder / "held.bin").string()};
  c.image_size = 12;
  std::ostringstream console;
  ASSERT_EQ(train(c, console), kExitOk) << console.str();
  EXPECT_THAT(console.str(), HasSubstr("images, 3 x 12 x 12"));
  EXPECT_THAT(console.str(), Not(HasSubstr("scaled")));  // as it was asked for
  EXPECT_EQ(nlohmann::json::parse(slurp(folder / "run/config.json"))["image_size"], 12);
  const auto results = nlohmann::json::parse(slurp(folder / "run/all_results.json"));
  const auto [results_of, unit, warnings] = evaluate(evaluation_of(c, c.validation_file, 0));
  EXPECT_EQ(results_of.front().second.loss, results["eval_loss"].get<double>());
  EXPECT_THAT(warnings, testing::ElementsAre(c.validation_file[0] +
                                             ": 20 images, the first of 32 x 32 pixels, were "
                                             "scaled to 12 x 12"));
  // A run that goes on from there does as well, unless it says otherwise.
  TrainConfig on = images(folder.path(), "on");
  on.model.clear();
  on.width_mult = TrainConfig().width_mult;
  on.model_name_or_path = c.output_dir;
  ASSERT_EQ(train(on, console), kExitOk) << console.str();
  EXPECT_THAT(console.str(),
              HasSubstr("60 images, the first of 32 x 32 pixels, were scaled to 12"));
  on.image_size = 32;
  on.output_dir = (folder / "own").string();
  ASSERT_EQ(train(on, console), kExitOk) << console.str();
  EXPECT_EQ(nlohmann::json::parse(slurp(folder / "own/config.json"))["image_size"], 32);
}

}  // namespace
}  // namespace compact
