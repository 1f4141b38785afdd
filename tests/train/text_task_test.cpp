// SPDX-License-Identifier: Apache-2.0
// Runs of the tasks on texts: resumed bit for bit, the best model kept, evaluated alike, wrong
// settings refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "compact/base/check.h"
#include "compact/train/evaluate.h"
#include "compact/train/task.h"
#include "tests/shared_data.h"
#include "tests/train/resume.h"

namespace compact {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const char* const kWords[] = {"a", "film", "that", "is", "good", "bad", "very", "not", "it", "was"};

// Sentences are positive where they have more `good` than `bad`; of pairs, by the first.
void write_texts(const fs::path& folder, bool pairs) {
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (const char* word : kWords) vocabulary += std::string(word) + "\n";
  spill(folder / "vocab.txt", vocabulary);
  std::mt19937 random(7);
  for (const char* name : {"train.tsv", "dev.tsv"}) {
    std::string text = pairs ? "sentence1\tsentence2\tlabel\n" : "sentence\tlabel\n";
    for (int i = 0; i < 60; ++i) {
      const auto sentence = [&] {
        std::string words;
        for (int n = 1 + static_cast<int>(random() % 9); n > 0; --n) {
          words += std::string(words.empty() ? "" : " ") + kWords[random() % 10];
        }
        return words;
      };
      const std::string first = sentence() + (i % 2 ? " good" : " bad");
      text += first + (pairs ? "\t" + sentence() : "") + (i % 2 ? "\tyes\n" : "\tno\n");
    }
    spill(folder / name, text);
  }
}

TrainConfig base(const fs::path& folder, const std::string& output) {
  TrainConfig c;
  c.per_device_train_batch_size = 4;
  c.gradient_accumulation_steps = 2;
  c.max_steps = 6;
  c.learning_rate = 1e-3;
  c.logging_steps = 1;
  c.eval_steps = 2;
  c.threads = 2;
  c.device = "cpu";
  c.bits_interval = 3;
  c.bits_probes = 2;
  c.update_proj_gap = -1;
  c.cache_dir = (folder / "cache").string();
  c.output_dir = (folder / output).string();
  return c;
}

TrainConfig texts(const fs::path& folder, const std::string& output, bool pairs = false) {
  if (!fs::exists(folder / "train.tsv")) write_texts(folder, pairs);
  TrainConfig c = base(folder, output);
  c.task = "text-classification";
  c.model = "bert-tiny";
  c.tokenizer = "wordpiece:file=" + (folder / "vocab.txt").string();
  c.max_seq_length = 24;
  c.train_file = {(folder / "train.tsv").string()};
  c.validation_file = {(folder / "dev.tsv").string()};
  return c;
}
TrainConfig sentences(const fs::path& folder, const std::string& output) {
  return texts(folder, output);
}
TrainConfig best_of_pairs(const fs::path& folder, const std::string& output) {
  TrainConfig c = texts(folder, output, true);
  c.load_best_model_at_end = true;
  c.eval_steps = 1;
  return c;
}

TrainConfig prompts(const fs::path& folder, const std::string& output) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    const std::string number = std::to_string(i * 37);
    lines += R"({"prompt": "twice )" + number + R"( is ", "completion": ")" +
             std::to_string(i * 74) + "\"}\n";
  }
  spill(folder / "train.jsonl", lines);
  TrainConfig c = base(folder, output);
  c.task = "prompt-completion";
  c.model = "llama-tiny";
  c.block_size = 32;
  c.validation_split = 0.2;
  c.train_file = {(folder / "train.jsonl").string()};
  return c;
}

struct Case {
  std::string name;
  TrainConfig (*make)(const fs::path&, const std::string&);
  std::string preset;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

nlohmann::json results_of(const TrainConfig& c) {
  return nlohmann::json::parse(slurp(c.output_dir + "/all_results.json"));
}

// What `compact eval` says of the model that a run left.
EvalResult evaluated(const TrainConfig& run) {
  TrainConfig c;
  c.model_name_or_path = run.output_dir;
  c.validation_file = run.validation_file;
  c.max_seq_length = run.max_seq_length;
  c.max_eval_samples = 0;
  c.device = "cpu";
  std::string unit;
  std::vector<std::string> warnings;
  return evaluate(c, unit, warnings);
}

class TextResume : public ::testing::TestWithParam<Case> {};

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

INSTANTIATE_TEST_SUITE_P(Tasks, TextResume,
                         ::testing::Values(Case{"sentences_off", sentences, "off"},
                                           Case{"sentences_compact", sentences, "compact"},
                                           Case{"sentences_compact_paper", sentences,
                                                "compact-paper"},
                                           Case{"sentences_gact_l2", sentences, "gact-l2"},
                                           Case{"best_of_pairs_exact", best_of_pairs, "exact"},
                                           Case{"prompts_exact", prompts, "exact"}),
                         [](const auto& info) { return info.param.name; });

TEST(TextTask, LosslessPresetsTrainTheSameModel) {
  const TemporaryFolder folder;
  std::string models[2];
  int i = 0;
  for (const char* preset : {"off", "exact"}) {
    TrainConfig c = sentences(folder.path(), preset);
    c.preset = preset;
    std::ostringstream console;
    ASSERT_EQ(train(c, console), kExitOk) << console.str();
    models[i++] = slurp(c.output_dir + "/model.safetensors");
  }
  EXPECT_TRUE(models[0] == models[1]);
}

TEST(TextTask, LearnsAndTheBestModelIsTheLastOne) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  c.max_steps = -1;
  c.num_train_epochs = 12;
  c.eval_epochs = 1;
  c.load_best_model_at_end = true;
  c.metric_for_best_model = "matthews_correlation";
  std::ostringstream console;
  ASSERT_EQ(train(c, console), kExitOk) << console.str();
  std::ifstream in(c.output_dir + "/metrics.jsonl");
  std::string line;
  double best = -2;
  int evaluations = 0;
  while (std::getline(in, line)) {
    const auto j = nlohmann::json::parse(line);
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
  // A head for other classes is a new one.
  std::string three = slurp(folder / "train.tsv");
  three += "it was\tperhaps\n";
  spill(folder / "three.tsv", three);
  TrainConfig more = sentences(folder.path(), "more");
  more.model.clear();
  more.tokenizer.clear();
  more.model_name_or_path = c.output_dir;
  more.train_file = {(folder / "three.tsv").string()};
  more.max_steps = 1;
  std::ostringstream text;
  ASSERT_EQ(train(more, text), kExitOk) << text.str();
  EXPECT_THAT(text.str(), HasSubstr("has no classifier.weight and 1 more: new ones are trained"));
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
  std::ostringstream console;
  ASSERT_EQ(train(c, console), kExitOk) << console.str();
  const auto results = results_of(c);
  EXPECT_TRUE(results.contains("eval_pearson") && results.contains("eval_spearmanr"));
  EXPECT_FALSE(results.contains("eval_accuracy") || results.contains("eval_perplexity"));
  EXPECT_EQ(evaluated(c).loss, results["eval_loss"].get<double>());
}

std::string ran(const TrainConfig& c) {
  std::ostringstream console;
  EXPECT_EQ(train(c, console), kExitOk) << console.str();
  return console.str();
}

// Labels that are all alike have no correlation: no evaluation is the best.
TEST(TextTask, ModelIsKeptWhereNoneIsTheBest) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  spill(folder / "values.tsv", "text\tlabel\ngood film\t1\nbad film\t1\nit was\t1\nnot\t1\n");
  c.train_file = c.validation_file = {(folder / "values.tsv").string()};
  c.do_regression = c.load_best_model_at_end = true;
  EXPECT_THAT(ran(c), HasSubstr("no evaluation gave a pearson"));
  EXPECT_TRUE(fs::exists(folder / "run/model.safetensors"));
}

TEST(TextTask, BestModelOfAnotherFolderOrMetricIsForgotten) {
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
  EXPECT_THAT(ran(c), HasSubstr("was the best by loss, not by accuracy"));
  EXPECT_TRUE(results_of(c).contains("eval_accuracy"));
}

// A head says which class is which: here the folder's classes change places, its weights do not.
TEST(TextTask, ClassesKeepTheNumbersThatTheHeadHas) {
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
  TrainConfig more = sentences(folder.path(), "more");
  more.model.clear();
  more.model_name_or_path = c.output_dir;
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

TEST(TextTask, ResumedRunKeepsItsModel) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  ran(c);
  TrainConfig more = sentences(folder.path(), "more");
  more.model.clear();
  more.model_name_or_path = c.output_dir;
  more.save_steps = 3;
  ran(more);
  auto shape = nlohmann::json::parse(slurp(folder / "run/config.json"));
  shape["layer_norm_eps"] = 0.125;
  spill(folder / "run/config.json", shape.dump());
  more.resume_from_checkpoint = (folder / "more/checkpoint-3").string();
  EXPECT_THAT(error_of([&] { ran(more); }), HasSubstr("the model's layer_norm_eps is 0.125"));
}

TEST(TextTask, OptionsOfOtherTasksAreNotIgnoredInSilence) {
  const TemporaryFolder folder;
  TrainConfig c = prompts(folder.path(), "run");
  c.max_steps = 1;
  c.max_seq_length = 64;
  c.dropout = 0.1;
  const std::string text = ran(c);
  EXPECT_THAT(text, HasSubstr("--max_seq_length takes no effect: it is for glue, text-class"));
  EXPECT_THAT(text, HasSubstr("--dropout takes no effect"));
  EXPECT_THAT(ran(sentences(folder.path(), "other")), Not(HasSubstr("takes no effect")));
}

TEST(TextTask, RefusesWhatDoesNotGoTogether) {
  const TemporaryFolder folder;
  const auto error = [&](const auto& change) -> std::string {
    TrainConfig c = sentences(folder.path(), "run");
    c.overwrite_output_dir = true;
    c.max_steps = 1;
    change(c);
    std::ostringstream console;
    try {
      train(c, console);
    } catch (const InputError& e) {
      return e.what();
    }
    return console.str();
  };
  EXPECT_THAT(error([](TrainConfig& c) { c.tokenizer = "bytes"; }), HasSubstr("--tokenizer"));
  EXPECT_THAT(error([](TrainConfig& c) { c.max_seq_length = 1000; }), HasSubstr("512 positions"));
  EXPECT_THAT(error([](TrainConfig& c) { c.max_seq_length = 2; }), HasSubstr("at least 3"));
  EXPECT_THAT(error([](TrainConfig& c) { c.model = "bert-tni"; }), HasSubstr("bert-tiny"));
  EXPECT_THAT(error([](TrainConfig& c) { c.label_column = "lable"; }), HasSubstr("label"));
  EXPECT_THAT(error([](TrainConfig& c) { c.task = "glue"; }), HasSubstr("--task_name"));
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
