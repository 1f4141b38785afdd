// SPDX-License-Identifier: Apache-2.0
// The best model of a run: kept, loaded at the end, forgotten where it is not the one that is
// meant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/text_runs.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

TEST(BestModel, LearnsAndTheBestModelIsTheLastOne) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  c.max_steps = -1;
  c.num_train_epochs = 12;
  c.eval_epochs = 1;
  c.load_best_model_at_end = true;
  c.metric_for_best_model = "matthews_correlation";
  ran(c);
  double best = -2;
  int evaluations = 0;
  for (const nlohmann::json& j : metrics_of(c.output_dir)) {
    if (!j.contains("eval_matthews_correlation")) continue;
    ++evaluations;
    best = std::max(best, j["eval_matthews_correlation"].get<double>());
  }
  EXPECT_GE(evaluations, 12);
  EXPECT_GT(best, 0.6);
  const auto results = results_of(c);
  EXPECT_EQ(results["eval_matthews_correlation"].get<double>(), best);
  EXPECT_TRUE(slurp(c.output_dir + "/model.safetensors") ==
              slurp(c.output_dir + "/best/model.safetensors"));
  // The folder knows its tokenizer and classes.
  const EvalResult r = evaluated(c);
  EXPECT_EQ(*r.accuracy, results["eval_accuracy"].get<double>());
  EXPECT_FALSE(r.in_five);
}

// Labels that are all alike have no correlation: no evaluation is the best.
TEST(BestModel, ModelIsKeptWhereNoneIsTheBest) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  spill(folder / "values.tsv", "text\tlabel\ngood film\t1\nbad film\t1\nit was\t1\nnot\t1\n");
  c.train_file = c.validation_file = {(folder / "values.tsv").string()};
  c.do_regression = c.load_best_model_at_end = true;
  EXPECT_THAT(ran(c), HasSubstr("no evaluation gave a pearson"));
  EXPECT_TRUE(fs::exists(folder / "run/model.safetensors"));
}

TEST(BestModel, BestModelOfAnotherFolderOrMetricIsForgotten) {
  const TemporaryFolder folder;
  TrainConfig c = best_of_pairs(folder.path(), "run");
  c.save_steps = 2;
  c.metric_for_best_model = "loss";
  ran(c);
  c.resume_from_checkpoint = (folder / "run/checkpoint-4").string();
  c.output_dir = (folder / "other").string();
  EXPECT_THAT(ran(c), HasSubstr("is not in " + c.output_dir + "/best: from here on"));
  c.output_dir = (folder / "run").string();
  c.metric_for_best_model = "accuracy";
  EXPECT_THAT(ran(c), HasSubstr("was chosen by another metric than accuracy"));
  EXPECT_TRUE(results_of(c).contains("eval_accuracy"));
}

}  // namespace
}  // namespace compact
