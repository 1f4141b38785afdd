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

// What is given stays, zero too; a rate without a warm-up has none.
TEST(Pretrained, UsualRatesAreThoseThatNobodyGave) {
  const TemporaryFolder folder;
  const TrainConfig c = sentences(folder.path(), "run");
  ran(c);
  TrainConfig more = from_model(c, folder.path());
  const auto taken = [&](double rate, double warmup) {
    more.learning_rate = rate;
    more.warmup_steps = warmup;
    const TrainConfig all = for_task(more);
    return std::pair(all.learning_rate, all.warmup_steps);
  };
  const TrainConfig usual;
  EXPECT_EQ(taken(usual.learning_rate, usual.warmup_steps), std::pair(5e-5, 0.1));
  EXPECT_EQ(taken(0, usual.warmup_steps), std::pair(0.0, 0.0));
  EXPECT_EQ(taken(2e-5, usual.warmup_steps), std::pair(2e-5, 0.0));
  EXPECT_EQ(taken(usual.learning_rate, 7), std::pair(5e-5, 7.0));
  more.model_name_or_path.clear();
  EXPECT_EQ(taken(usual.learning_rate, usual.warmup_steps), std::pair(1e-3, 0.0));
  // At zero nothing moves, and nothing can be a multiple of it.
  TrainConfig still = from_model(c, folder.path());
  still.learning_rate = 0;
  ran(still);
  EXPECT_EQ(slurp(folder / "more/model.safetensors"), slurp(folder / "run/model.safetensors"));
  still.projected_learning_rate = 1e-3;
  still.overwrite_output_dir = true;
  EXPECT_THAT(error_of([&] { ran(still); }),
              HasSubstr("--projected_learning_rate 0.001 needs a --learning_rate above 0, is 0"));
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
