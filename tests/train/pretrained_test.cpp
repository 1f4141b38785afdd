// SPDX-License-Identifier: Apache-2.0
// Runs that go on from a model folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/text_runs.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

// The same texts, from the model that another run left.
TrainConfig from_model(const TrainConfig& run, const fs::path& folder) {
  TrainConfig c = sentences(folder, "more");
  c.model.clear();
  c.model_name_or_path = run.output_dir;
  return c;
}

TEST(Pretrained, HeadForOtherClassesIsANewOne) {
  const TemporaryFolder folder;
  const TrainConfig c = sentences(folder.path(), "run");
  ran(c);
  spill(folder / "three.tsv", slurp(folder / "train.tsv") + "it was\tperhaps\n");
  TrainConfig more = from_model(c, folder.path());
  more.tokenizer.clear();
  more.train_file = {(folder / "three.tsv").string()};
  more.max_steps = 1;
  EXPECT_THAT(ran(more), HasSubstr("has no classifier.weight and 1 more: new ones are trained"));
}

// A head says which class is which: here the folder's classes change places, its weights do not.
TEST(Pretrained, ClassesKeepTheNumbersThatTheHeadHas) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  c.max_steps = 60;
  c.eval_steps = 0;
  ran(c);
  const double accuracy = *evaluated(c).accuracy;
  EXPECT_GT(accuracy, 0.6);
  auto shape = nlohmann::json::parse(slurp(folder / "run/config.json"));
  shape["id2label"] = {{"0", "yes"}, {"1", "no"}};
  spill(folder / "run/config.json", shape.dump());
  TrainConfig more = from_model(c, folder.path());
  more.max_steps = 1;
  more.eval_steps = 0;
  more.learning_rate = 1e-12;
  ran(more);
  EXPECT_NEAR(results_of(more)["eval_accuracy"].get<double>(), 1 - accuracy, 1e-9);
  more.overwrite_output_dir = true;
  more.output_dir = c.output_dir;
  EXPECT_THAT(error_of([&] { ran(more); }), HasSubstr("--overwrite_output_dir would remove"));
  EXPECT_TRUE(fs::exists(folder / "run/model.safetensors"));
}

TEST(Pretrained, ResumedRunKeepsItsModel) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  ran(c);
  TrainConfig more = from_model(c, folder.path());
  more.save_steps = 3;
  ran(more);
  auto shape = nlohmann::json::parse(slurp(folder / "run/config.json"));
  shape["layer_norm_eps"] = 0.125;
  spill(folder / "run/config.json", shape.dump());
  more.resume_from_checkpoint = (folder / "more/checkpoint-3").string();
  EXPECT_THAT(error_of([&] { ran(more); }), HasSubstr("the model's layer_norm_eps is 0.125"));
}

}  // namespace
}  // namespace compact
