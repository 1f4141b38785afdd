// SPDX-License-Identifier: Apache-2.0
// Runs that go on from a model folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/data/tokenizers/tokenizer.h"
#include "compact/tasks/tokenizer_store.h"
#include "tests/train/language_run.h"
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

// A given rate stays, zero too; a rate without a warm-up has none.
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
  more.optim = "muon";
  EXPECT_EQ(taken(usual.learning_rate, usual.warmup_steps), std::pair(5e-5, 0.1));
  more.optim = "sgd";
  EXPECT_EQ(taken(usual.learning_rate, usual.warmup_steps), std::pair(1e-3, 0.1));
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

const std::string kSentencePiece =
    std::string(COMPACT_SOURCE_DIR) + "/examples/data/austen-2048.model";

// A run of one step from a folder that says of other tokens than a tokenizer's that they end texts.
TrainConfig from_other_ids(const fs::path& folder) {
  TrainConfig c = language_run(folder, "run");
  auto shape = nlohmann::json::parse(slurp(folder / "config.json"));
  shape.update(
      {{"vocab_size", 2048}, {"bos_token_id", 5}, {"eos_token_id", 6}, {"pad_token_id", 7}});
  spill(folder / "config.json", shape.dump());
  spill(folder / "generation_config.json", R"({"eos_token_id": [1, 0]})");
  c.max_steps = 1;
  c.warmup_steps = 0;
  return c;
}

TEST(Pretrained, IdsOfAFolderAreNotThoseOfAnotherTokenizer) {
  const TemporaryFolder folder;
  TrainConfig c = from_other_ids(folder.path());
  for (const std::string& tokenizer : {"sentencepiece:file=" + kSentencePiece, std::string()}) {
    c.tokenizer = tokenizer;
    c.overwrite_output_dir = true;
    ran(c);
    const auto used = make_tokenizer(tokenizer.empty() ? "bytes" : tokenizer);
    const auto shape = nlohmann::json::parse(slurp(folder / "run/config.json"));
    EXPECT_EQ(shape["eos_token_id"], used->end_of_text());
    EXPECT_TRUE(shape["bos_token_id"].is_null());
    EXPECT_TRUE(shape.value("pad_token_id", nlohmann::json()).is_null());
    EXPECT_FALSE(fs::exists(folder / "run/generation_config.json"));
    const auto stored = load_tokenizer(folder / "run");
    EXPECT_EQ(stored->end_of_text(), used->end_of_text());
    EXPECT_EQ(stored->hash(), used->hash());
  }
}

TEST(Pretrained, ARunThatHadThePadOfAFolderGoesOnWithout) {
  const TemporaryFolder folder;
  TrainConfig c = from_other_ids(folder.path());
  spill(folder / "generation_config.json", R"({"eos_token_id": 2})");
  fs::copy_file(kSentencePiece, folder / "tokenizer.model");
  c.tokenizer = "sentencepiece:file=" + (folder / "tokenizer.model").string();
  c.save_steps = 1;
  c.max_steps = 2;
  ran(c);
  c.tokenizer = "sentencepiece:file=" + kSentencePiece;
  c.resume_from_checkpoint = (folder / "run/checkpoint-1").string();
  EXPECT_THAT(ran(c), HasSubstr("the model's pad_token_id was 7"));
}

// A run that has begun may have what a new one may not.
TEST(Pretrained, ATokenizerThatTransformersReadsOtherwiseCanBeEvaluated) {
  const TemporaryFolder folder;
  TrainConfig c = from_other_ids(folder.path());
  auto shape = nlohmann::json::parse(slurp(folder / "config.json"));
  shape["model_type"] = "qwen2";
  spill(folder / "config.json", shape.dump());
  ran(c);
  c.tokenizer = "sentencepiece:file=" + kSentencePiece;
  c.overwrite_output_dir = true;
  EXPECT_THAT(error_of([&] { ran(c); }), HasSubstr("beside such a model as Qwen2Tokenizer"));
  c.model_name_or_path = c.output_dir;
  c.validation_file = c.train_file;
  EXPECT_EQ(error_of([&] { evaluate(c); }), "");
}

TEST(Pretrained, IdsOfAFolderStayWithItsTokenizer) {
  const TemporaryFolder folder;
  TrainConfig c = from_other_ids(folder.path());
  fs::copy_file(kSentencePiece, folder / "tokenizer.model");
  c.tokenizer = "sentencepiece:file=" + (folder / "tokenizer.model").string();
  ran(c);
  EXPECT_EQ(nlohmann::json::parse(slurp(folder / "run/config.json"))["eos_token_id"], 6);
  EXPECT_EQ(slurp(folder / "run/generation_config.json"), R"({"eos_token_id": [1, 0]})");
  EXPECT_EQ(load_tokenizer(folder / "run")->end_of_text(), 1u);
}

}  // namespace
}  // namespace compact
