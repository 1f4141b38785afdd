// SPDX-License-Identifier: Apache-2.0
// Runs of the tasks on texts: resumed bit for bit, evaluated alike, wrong settings refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "compact/base/check.h"
#include "compact/data/text/prepare.h"
#include "compact/tasks/task.h"
#include "tests/temporary_folder.h"
#include "tests/train/text_runs.h"

namespace compact {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TextResume : public ::testing::TestWithParam<ResumeCase> {};

// In the middle of the first window of accumulation and of later ones, between choices of bits.
TEST_P(TextResume, IsBitExact) {
  const TemporaryFolder folder;
  TrainConfig whole = GetParam().make(folder.path(), "whole");
  whole.preset = GetParam().preset;
  if (whole.preset.starts_with("compact")) {
    whole.rank = 8;
    whole.update_proj_gap = 3;
  }
  expect_bit_exact_resume(whole, {{0, 0}, {2, 0}, {5, 0}});
}

INSTANTIATE_TEST_SUITE_P(
    Tasks, TextResume,
    ::testing::Values(ResumeCase{"sentences_off", sentences, "off"},
                      ResumeCase{"sentences_compact", sentences, "compact"},
                      ResumeCase{"sentences_compact_paper", sentences, "compact-paper"},
                      ResumeCase{"sentences_gact_l2", sentences, "gact-l2"},
                      ResumeCase{"best_of_pairs_exact", best_of_pairs, "exact"},
                      ResumeCase{"prompts_exact", prompts, "exact"},
                      ResumeCase{"preferences_exact", preferences, "exact"},
                      ResumeCase{"preferences_gact_l2", preferences, "gact-l2"},
                      ResumeCase{"packed_prompts_exact", packed_prompts, "exact"},
                      ResumeCase{"packed_prompts_gact_l2", packed_prompts, "gact-l2"},
                      ResumeCase{"packed_gpt2_exact", packed_gpt2, "exact"}),
    [](const auto& info) { return info.param.name; });

TEST(TextTask, LosslessPresetsTrainTheSameModel) {
  const TemporaryFolder folder;
  std::string models[2];
  int i = 0;
  for (const char* preset : {"off", "exact"}) {
    TrainConfig c = sentences(folder.path(), preset);
    c.preset = preset;
    ran(c);
    models[i++] = slurp(c.output_dir + "/model.safetensors");
  }
  EXPECT_TRUE(models[0] == models[1]);
}

TEST(TextTask, RegressionHasCorrelations) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  std::string text = "text\tlabel\n";
  for (int i = 0; i < 40; ++i)
    text +=
        std::string(i % 2 ? "good film" : "bad film") + "\t" + std::to_string(i % 2 + 0.25) + "\n";
  spill(folder / "values.tsv", text);
  c.train_file = c.validation_file = {(folder / "values.tsv").string()};
  c.do_regression = true;
  c.label_smoothing_factor = 0.1;
  EXPECT_THAT(ran(c), HasSubstr("--label_smoothing_factor takes no effect: targets are values"));
  const auto results = results_of(c);
  EXPECT_TRUE(results.contains("eval_pearson") && results.contains("eval_spearmanr"));
  EXPECT_FALSE(results.contains("eval_accuracy") || results.contains("eval_perplexity"));
  EXPECT_EQ(evaluated(c).loss, results["eval_loss"].get<double>());
}

// Samples are cut as the run cut them, unless something else is asked for.
TEST(TextTask, EvaluationsCutSamplesAsTheRunDid) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "texts");
  c.max_seq_length = 6;
  TrainConfig p = prompts(folder.path(), "prompts");
  p.block_size = 11;
  p.truncation = "start";
  p.validation_file = p.train_file;
  p.validation_split = 0;
  for (const TrainConfig& run : {c, p}) {
    ran(run);
    EXPECT_EQ(evaluated(run).loss, results_of(run)["eval_loss"].get<double>()) << run.task;
  }
  TrainConfig e;
  e.model_name_or_path = c.output_dir;
  e.validation_file = c.validation_file;
  e.max_seq_length = 5;
  const Evaluation other = evaluate(e);
  EXPECT_NE(other.results.front().second.loss, results_of(c)["eval_loss"].get<double>());
  EXPECT_THAT(other.warnings, Not(::testing::Contains(HasSubstr("as in the run"))));
  e.max_seq_length = TrainConfig().max_seq_length;
  EXPECT_THAT(evaluate(e).warnings, ::testing::Contains("as in the run: --max_seq_length 6"));
}

// Its files are GLUE's own; those for training are not needed.
TEST(TextTask, ModelsAreEvaluatedOnTasksOfGlue) {
  const TemporaryFolder folder;
  const fs::path data = folder / "glue";
  fs::create_directories(data / "CoLA");
  fs::create_directories(data / "MNLI");
  std::string cola, mnli = "sentence1\tsentence2\tgold_label\n";
  const char* classes[] = {"neutral", "contradiction", "entailment"};
  for (int i = 0; i < 30; ++i) {
    const std::string text = std::string(i % 2 ? "a good film" : "it was bad") + kWords[i % 10];
    cola += cat("x\t", i % 2, "\t\t", text, "\n");
    mnli += cat(text, "\t", kWords[i % 7], "\t", classes[i % 3], "\n");
  }
  for (const char* name : {"train.tsv", "dev.tsv"}) spill(data / "CoLA" / name, cola);
  for (const char* name : {"train.tsv", "dev_matched.tsv"}) spill(data / "MNLI" / name, mnli);
  spill(data / "MNLI/dev_mismatched.tsv", mnli.substr(0, mnli.size() / 2) + "\n");
  const auto run = [&](const std::string& name) {
    TrainConfig c = sentences(folder.path(), name);
    c.task = "glue";
    c.task_name = name;
    c.data_dir = data.string();
    c.train_file.clear();
    c.validation_file.clear();
    ran(c);
    return c;
  };
  const auto evaluation_of = [&](const TrainConfig& trained, const std::string& task) {
    TrainConfig c;
    c.model_name_or_path = trained.output_dir;
    c.task_name = task;
    c.data_dir = trained.data_dir;
    c.max_eval_samples = 0;
    c.device = "cpu";
    return evaluate(c).results;
  };
  const TrainConfig one = run("cola"), other = run("mnli");
  fs::remove(data / "CoLA/train.tsv");
  fs::remove(data / "MNLI/train.tsv");
  const Evaluations of_one = evaluation_of(one, "cola"), of_other = evaluation_of(other, "mnli");
  ASSERT_EQ(of_one.size(), 1u);
  EXPECT_EQ(of_one[0].second.loss, results_of(one)["eval_loss"].get<double>());
  EXPECT_EQ(of_one[0].second.scores[0].first, "matthews_correlation");
  ASSERT_EQ(of_other.size(), 2u);
  EXPECT_EQ(of_other[0].second.loss, results_of(other)["eval_loss"].get<double>());
  EXPECT_EQ(of_other[1].second.loss, results_of(other)["eval_mismatched_loss"].get<double>());
  EXPECT_EQ(of_other[1].first, "eval_mismatched");
  EXPECT_NE(of_other[1].second.targets, of_other[0].second.targets);
  EXPECT_THAT(error_of([&] { evaluation_of(other, "cola"); }),
              HasSubstr("was trained for 3 classes, the data have 2 classes"));
  EXPECT_THAT(error_of([&] { evaluation_of(one, "sst2"); }), HasSubstr("has no dev.tsv"));
  EXPECT_THAT(error_of([&] { evaluation_of(one, ""); }), HasSubstr("--task_name and --data_dir"));
}

// F1 is of paraphrases, whatever number the head has for them.
TEST(TextTask, HeadsKeepTheirNumbersOnTasksOfGlue) {
  const TemporaryFolder folder;
  const fs::path data = folder / "glue";
  fs::create_directories(data / "MRPC");
  TrainConfig c = sentences(folder.path(), "run");
  std::string text = "sentence1\tsentence2\tlabel\n";
  std::string mrpc = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n";
  for (int i = 0; i < 40; ++i) {
    const bool same = i % 4 == 0;
    const std::string pair = std::string(kWords[i % 10]) + (same ? " good\t" : " bad\t") + "film";
    text += pair + (same ? "\tEquivalent\n" : "\tNot_equivalent\n");
    mrpc += cat(same ? 1 : 0, "\t1\t2\t", pair, "\n");
  }
  spill(folder / "pairs.tsv", text);
  for (const char* name : {"train.tsv", "dev.tsv"}) spill(data / "MRPC" / name, mrpc);
  c.train_file = c.validation_file = {(folder / "pairs.tsv").string()};
  c.max_steps = 1;
  ran(c);
  TrainConfig of_glue;
  of_glue.model_name_or_path = c.output_dir;
  of_glue.task_name = "mrpc";
  of_glue.data_dir = data.string();
  of_glue.max_eval_samples = 0;
  of_glue.device = "cpu";
  const EvalResult got = evaluate(of_glue).results.front().second, want = evaluated(c);
  EXPECT_EQ(got.loss, want.loss);
  EXPECT_EQ(*got.accuracy, *want.accuracy);
  const auto f1 = [](const EvalResult& r) {
    for (const auto& [name, value] : r.scores) {
      if (name == "f1") return value;
    }
    return -1.0;
  };
  // How many of the ten equivalent pairs are found: it follows from the score of the other class.
  const double right = *want.accuracy * 40;
  int found = 10;
  while (found > 0 && std::abs(2 * (right - found) / (40 + right - 2 * found) - f1(want)) > 1e-12) {
    --found;
  }
  EXPECT_DOUBLE_EQ(f1(got), 2.0 * found / (40 + 2 * found - right));
  auto config = nlohmann::json::parse(slurp(c.output_dir + "/config.json"));
  EXPECT_EQ(config["sentence_pairs"], true);
  config["sentence_pairs"] = false;
  spill(c.output_dir + "/config.json", config.dump());
  EXPECT_THAT(error_of([&] { evaluate(of_glue); }),
              HasSubstr("--task_name mrpc: has pairs of texts, "));
}

TEST(TextTask, BitsAreChosenUnderABudget) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  c.preset = "gact-l2";
  ran(c);
  const auto planned = results_of(c)["memory/planned_peak_bytes"].get<int64_t>();
  c.output_dir = (folder / "within").string();
  c.budget = std::to_string(planned + 4096) + "B";
  EXPECT_THAT(ran(c), HasSubstr("bits     "));
  EXPECT_LE(results_of(c)["memory/peak_bytes"].get<int64_t>(), planned + 4096);
}

TEST(TextTask, OptionsOfOtherTasksAreNotIgnoredInSilence) {
  const TemporaryFolder folder;
  TrainConfig c = prompts(folder.path(), "run");
  c.max_steps = 1;
  c.max_seq_length = 64;
  c.hidden_size = 16;
  const std::string text = ran(c);
  EXPECT_THAT(text,
              HasSubstr("--max_seq_length takes no effect: it is for text-classification, glue"));
  EXPECT_THAT(text, HasSubstr("--hidden_size takes no effect"));
  EXPECT_THAT(text, HasSubstr("--bits_interval takes no effect: preset `exact` leaves no bits"));
  TrainConfig other = sentences(folder.path(), "other");
  other.preset = "gact-l2";  // reads the bits_* that small runs are given
  EXPECT_THAT(ran(other), Not(HasSubstr("takes no effect")));
}

// A long prompt is cut, and a plan is of the longest sample, not of what it may have at most.
TEST(TextTask, CutsLongPromptsAndPlansForTheLongest) {
  const TemporaryFolder folder;
  TrainConfig c = prompts(folder.path(), "run");
  c.max_steps = 2;
  c.block_size = 128;
  ran(c);
  const auto short_ones = results_of(c)["memory/planned_peak_bytes"].get<int64_t>();
  const std::string lines = slurp(c.train_file[0]);
  spill(c.train_file[0],
        lines + R"({"prompt": "long", "completion": ")" + std::string(200, 'x') + "\"}\n");
  c.output_dir = (folder / "cut").string();
  EXPECT_THAT(ran(c), HasSubstr("1 sample lost tokens at the end to have at most 129"));
  EXPECT_GT(results_of(c)["memory/planned_peak_bytes"].get<int64_t>(), short_ones);
  TrainConfig measured;
  measured.task.clear();
  measured.model_name_or_path = c.output_dir;
  measured.validation_file = c.train_file;
  measured.block_size = 128;
  measured.device = "cpu";
  EXPECT_GT(evaluate(measured).results[0].second.targets, 128);
}

// By the columns that the run read, where the file has them.
TEST(TextTask, MeasuresARunOnPromptsByItsColumns) {
  const TemporaryFolder folder;
  TrainConfig c = prompts(folder.path(), "run");
  spill(folder / "own.jsonl", R"({"instruction": "a", "input": "b", "output": "cd", "prompt": "x"}
{"instruction": "e", "output": "f", "prompt": "x"})");
  const std::string own = (folder / "own.jsonl").string(), usual = c.train_file[0];
  c.max_steps = 1;
  c.prompt_column = "instruction,input";
  c.completion_column = "output";
  c.train_file = {own};
  c.validation_file = {own};
  ran(c);
  TrainConfig measured;
  measured.task.clear();
  measured.model_name_or_path = c.output_dir;
  measured.block_size = 32;
  measured.device = "cpu";
  const auto targets_of = [&](const std::string& path) {
    measured.validation_file = {path};
    return evaluate(measured).results[0].second.targets;
  };
  EXPECT_EQ(targets_of(own), 5);  // with an end each
  EXPECT_GT(targets_of(usual), 0);
  measured.prompt_column = "input";
  EXPECT_THAT(error_of([&] { targets_of(usual); }), HasSubstr("has no column `input`"));
}

// A model of pairs is measured on pairs, one of single texts on these; f1 says its class.
TEST(TextTask, MeasuresPairsAsPairs) {
  const TemporaryFolder folder;
  for (const bool pairs : {true, false}) {
    const fs::path own = folder / (pairs ? "pairs" : "single");
    const fs::path other = folder / (pairs ? "other_single" : "other_pairs");
    fs::create_directory(own);
    fs::create_directory(other);
    write_texts(other, !pairs);
    TrainConfig c = texts(own, "run", pairs);
    c.max_steps = 1;
    EXPECT_THAT(ran(c), HasSubstr(" of `yes`"));
    EXPECT_EQ(results_of(c)["eval_f1_class"], "yes");
    EXPECT_EQ(evaluated(c).f1_class, "yes");
    c.validation_file = {(other / "dev.tsv").string()};
    EXPECT_THAT(error_of([&] { evaluated(c); }),
                HasSubstr(pairs ? "must have pairs of texts" : "must have single texts"));
  }
}

// A text or its tokens are measured as such, whatever options a run of another version had.
TEST(TextTask, MeasuresARunOnPromptsOnTexts) {
  const TemporaryFolder folder;
  TrainConfig c = prompts(folder.path(), "run");
  c.max_steps = 1;
  ran(c);
  auto settings = nlohmann::json::parse(slurp(folder / "run/train_config.json"));
  settings["option_of_tomorrow"] = 1;
  spill(folder / "run/train_config.json", settings.dump());
  TrainConfig measured;
  measured.task.clear();
  measured.model_name_or_path = c.output_dir;
  measured.block_size = 32;
  measured.device = "cpu";
  measured.cache_dir = (folder / "cache").string();
  const auto targets_of = [&](const std::string& path) {
    measured.validation_file = {path};
    return evaluate(measured).results[0].second.targets;
  };
  const std::string text = (folder / "a.txt").string(), tokens = (folder / "a.tokens").string();
  spill(text, std::string(100, 'x'));
  prepare({text}, *make_tokenizer("bytes"), tokens);
  EXPECT_EQ(targets_of(text), 96);  // three blocks
  EXPECT_EQ(targets_of(tokens), 96);
  EXPECT_NE(targets_of(c.train_file[0]), 96);
}

TEST(TextTask, SaysThatNothingIsHeldOut) {
  const TemporaryFolder folder;
  TrainConfig c = prompts(folder.path(), "run");
  const std::string lines = slurp(c.train_file[0]);
  spill(c.train_file[0], lines.substr(0, lines.find('\n', 200) + 1));
  c.validation_split = 0.05;
  c.max_steps = c.eval_steps = 1;
  const std::string text = ran(c);
  EXPECT_THAT(text, HasSubstr("nothing is held out to evaluate on: --validation_split 0.05 of "));
  EXPECT_THAT(text, HasSubstr("--eval_steps takes no effect"));
}

TEST(TextTask, SaysThatASplitTakesNoEffectBesideValidationData) {
  const TemporaryFolder folder;
  for (const MakeConfig make : {MakeConfig(sentences), MakeConfig(prompts)}) {
    TrainConfig c = make(folder.path(), "run");
    c.validation_split = 0.25;
    c.validation_file = c.train_file;
    std::vector<std::string> warnings;
    const Task task = task_named(c.task).open(c, {}, warnings);
    EXPECT_THAT(warnings, ::testing::ElementsAre(
                              "--validation_split takes no effect: there is a --validation_file"));
    EXPECT_EQ(task.train->size(), task.validation->size()) << c.task;
  }
}

TEST(TextTask, RefusesWhatDoesNotGoTogether) {
  const TemporaryFolder folder;
  const auto error = [&](const auto& change) -> std::string {
    TrainConfig c = sentences(folder.path(), "run");
    c.overwrite_output_dir = true;
    c.max_steps = 1;
    change(c);
    std::ostringstream console;
    const std::string thrown = error_of([&] { train(c, console); });
    return thrown.empty() ? console.str() : thrown;
  };
  EXPECT_THAT(error([](TrainConfig& c) { c.tokenizer = "bytes"; }), HasSubstr("--tokenizer"));
  EXPECT_THAT(error([](TrainConfig& c) { c.max_seq_length = 1000; }),
              HasSubstr("max_position_embeddings, which is for 512 tokens"));
  EXPECT_THAT(error([](TrainConfig& c) { c.max_seq_length = 2; }), HasSubstr("at least 3"));
  EXPECT_THAT(error([](TrainConfig& c) { c.model = "bert-tni"; }), HasSubstr("bert-tiny"));
  EXPECT_THAT(error([](TrainConfig& c) { c.label_column = "lable"; }), HasSubstr("label"));
  EXPECT_THAT(error([](TrainConfig& c) { c.task = "glue"; }), HasSubstr("--data_dir"));
  EXPECT_THAT(error([](TrainConfig& c) { c.task = "glue", c.data_dir = "glue"; }),
              HasSubstr("--task_name"));
  EXPECT_THAT(error([](TrainConfig& c) {
                c.load_best_model_at_end = true;
                c.metric_for_best_model = "acuracy";
              }),
              HasSubstr("did you mean `accuracy`"));
  EXPECT_THAT(error([](TrainConfig& c) {
                c.validation_file.clear();
                c.validation_split = 0;
                c.load_best_model_at_end = true;
              }),
              HasSubstr("nothing to evaluate on"));
  EXPECT_THAT(error([&](TrainConfig& c) {
                spill(folder / "pairs.tsv", "sentence1\tsentence2\tlabel\na\tfilm\tyes\n");
                c.validation_file = {(folder / "pairs.tsv").string()};
              }),
              HasSubstr("must have single texts as the training file has"));
  EXPECT_THAT(error([&](TrainConfig& c) {
                spill(folder / "other.tsv", "sentence\tlabel\na film\tmaybe\n");
                c.validation_file = {(folder / "other.tsv").string()};
              }),
              HasSubstr("maybe"));
}

}  // namespace
}  // namespace compact
