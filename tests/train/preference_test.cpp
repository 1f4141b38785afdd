// SPDX-License-Identifier: Apache-2.0
// Runs on pairs of answers: plans, presets, references, evaluations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "compact/base/check.h"
#include "compact/plan/search.h"
#include "tests/temporary_folder.h"
#include "tests/train/text_runs.h"

namespace compact {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string weights_of(const TrainConfig& c) { return slurp(c.output_dir + "/model.safetensors"); }

// All pairs are as long as the longest one.
TrainConfig even_pairs(const fs::path& folder, const std::string& output) {
  TrainConfig c = preferences(folder, output);
  std::string lines;
  for (int i = 0; i < 32; ++i) {
    lines += cat(R"({"prompt": "twice )", 1000 + i, R"( is", "chosen": " )", 2000 + 2 * i,
                 R"(.", "rejected": " )", 3000 + i, ".\"}\n");
  }
  spill(c.train_file[0], lines);
  c.validation_split = 0;
  c.max_steps = 2;
  return c;
}

TEST(Preference, StepsAreAsPlannedUnderEveryPreset) {
  const TemporaryFolder folder;
  for (const char* preset : {"off", "exact", "recompute", "tiled", "gact-l1", "compact"}) {
    TrainConfig c = even_pairs(folder.path(), preset);
    c.preset = preset;
    const std::string text = ran(c);
    EXPECT_THAT(text, HasSubstr(": as planned")) << text;
    EXPECT_THAT(text, HasSubstr("2 steps (0.5 epochs) of 4 x 2 pairs"));
    EXPECT_THAT(text, HasSubstr("scored   16 pairs by the model that training starts from"));
    // Before the first update the model is its reference.
    EXPECT_FLOAT_EQ(metrics_of(c.output_dir).at(0)["loss"].get<float>(), std::log(2.0F)) << preset;
  }
}

TEST(Preference, LosslessPresetsTrainTheSameModel) {
  const TemporaryFolder folder;
  TrainConfig c = preferences(folder.path(), "off");
  c.preset = "off";
  c.eval_steps = 6;
  ran(c);
  const json off = results_of(c);
  const std::string weights = weights_of(c);
  for (const char* preset : {"exact", "recompute", "tiled"}) {
    TrainConfig other = preferences(folder.path(), preset);
    other.preset = preset;
    ran(other);
    EXPECT_NEAR(results_of(other)["train_loss"].get<double>(), off["train_loss"].get<double>(),
                1e-6);
  }
  EXPECT_EQ(off["eval_pairs"], 8);
  EXPECT_GT(off["eval_margin"].get<double>(), 0);
  EXPECT_NEAR(off["eval_margin"].get<double>(),
              off["eval_reward_chosen"].get<double>() - off["eval_reward_rejected"].get<double>(),
              1e-9);
  EXPECT_GE(off["eval_accuracy"].get<double>(), 0.5);
}

// From a folder's weights: the folder named as the reference is the start; another is not; none is
// a loss of answers alone. What a run left is evaluated with the reference that it had.
TEST(Preference, ReferencesAreFoldersOrTheStart) {
  const TemporaryFolder folder;
  TrainConfig first = prompts(folder.path(), "first");
  ran(first);
  const auto with = [&](const std::string& output, const std::string& reference) {
    TrainConfig c = preferences(folder.path(), output);
    c.model.clear();
    c.model_name_or_path = first.output_dir;
    c.reference = reference;
    c.learning_rate = 1e-3;
    ran(c);
    return c;
  };
  const TrainConfig start = with("start", "start"), same = with("same", first.output_dir);
  EXPECT_TRUE(weights_of(start) == weights_of(same));
  const TrainConfig none = with("none", "none"), other = with("other", start.output_dir);
  const auto loss = [](const TrainConfig& c) {
    return metrics_of(c.output_dir).at(0)["loss"].get<double>();
  };
  EXPECT_NEAR(loss(start), std::log(2.0), 1e-6);
  EXPECT_GT(std::abs(loss(none) - loss(start)), 1e-3);
  EXPECT_GT(std::abs(loss(other) - loss(start)), 1e-3);
  TrainConfig c;
  c.task.clear();  // it is the run's
  c.model_name_or_path = start.output_dir;
  c.validation_file = start.train_file;
  c.device = "cpu";
  c.max_eval_samples = 0;
  const EvalResult own = evaluate(c).results.front().second;  // the run says where it began
  c.reference = first.output_dir;
  const EvalResult beside = evaluate(c).results.front().second;
  EXPECT_EQ(beside.targets, 40);
  EXPECT_EQ(own.loss, beside.loss);
  EXPECT_LT(beside.loss, std::log(2.0));
  // A run's other references are its evaluations', too.
  for (const TrainConfig& run : {none, other}) {
    TrainConfig taken = c, named = c;
    taken.model_name_or_path = named.model_name_or_path = run.output_dir;
    taken.reference = "start";
    named.reference = run.reference;
    const double loss = evaluate(taken).results.front().second.loss;
    EXPECT_EQ(loss, evaluate(named).results.front().second.loss);
    named.reference = first.output_dir;
    EXPECT_NE(loss, evaluate(named).results.front().second.loss);
  }
  c.reference = first.output_dir;
  c.model_name_or_path = first.output_dir;
  c.task = "preference";
  EXPECT_FLOAT_EQ(evaluate(c).results.front().second.loss, std::log(2.0));
}

// A row has two sequences of --block_size, each with positions of its own.
TEST(Preference, OfGpt2HasRowsBeyondItsPositions) {
  const TemporaryFolder folder;
  spill(folder.path() / "config.json", R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2,
    "n_head": 4, "n_positions": 20, "vocab_size": 257})");
  TrainConfig c = even_pairs(folder.path(), "run");
  c.model.clear();
  c.model_name_or_path = folder.path().string();
  c.block_size = 20;
  EXPECT_THAT(ran(c), HasSubstr(": as planned"));
  EXPECT_FLOAT_EQ(metrics_of(c.output_dir).at(0)["loss"].get<float>(), std::log(2.0F));
}

// `auto` times segments on the CPU, and offers smaller blocks; a row is longer than a block.
TEST(Preference, RowsBeyondABlockArePlannedWithinABudget) {
  const TemporaryFolder folder;
  TrainConfig c = even_pairs(folder.path(), "run");
  c.block_size = 20;
  c.preset = "auto";
  c.budget = "16MiB";
  c.cache_dir = (folder.path() / "cache").string();
  EXPECT_THAT(ran(c), HasSubstr(": as planned"));
}

// A run that goes on compares with what it began with, and evaluations take its loss.
TEST(Preference, KeepsItsReferenceAndItsLoss) {
  const TemporaryFolder folder;
  TrainConfig first = prompts(folder.path(), "first"), second = prompts(folder.path(), "second");
  second.seed = 3;
  ran(first), ran(second);
  TrainConfig c = preferences(folder.path(), "run");
  c.model.clear();
  c.model_name_or_path = first.output_dir;
  c.save_steps = 3;
  c.learning_rate = 1e-3;
  c.loss_type = "ipo";
  c.beta = 0.4;
  c.block_size = 21;  // cuts the longest
  ran(c);
  TrainConfig on = c;
  on.max_steps = 6;
  on.resume_from_checkpoint = c.output_dir + "/checkpoint-3";
  on.model_name_or_path = second.output_dir;
  std::ostringstream console;
  EXPECT_THAT(
      [&] { train(on, console); },
      ::testing::ThrowsMessage<InputError>(HasSubstr("the reference has other weights than that")));
  TrainConfig e;
  e.task.clear();
  e.model_name_or_path = c.output_dir;
  e.validation_file = c.train_file;
  e.device = "cpu";
  e.max_eval_samples = 0;
  const EvalResult taken = evaluate(e).results.front().second;
  e.beta = 0.4;
  e.loss_type = "ipo";
  e.block_size = 21;
  EXPECT_EQ(evaluate(e).results.front().second.loss, taken.loss);
  e.beta = 0.2;
  EXPECT_NE(evaluate(e).results.front().second.loss, taken.loss);
}

// The reference is what adapters stand beside, in codes of four bits, too.
TEST(Preference, OfAdaptersIsEvaluatedBesideTheirBase) {
  const TemporaryFolder folder;
  TrainConfig first = prompts(folder.path(), "first");
  ran(first);
  for (const bool coded : {false, true}) {
    TrainConfig c = preferences(folder.path(), coded ? "coded" : "whole");
    c.model.clear();
    c.model_name_or_path = first.output_dir;
    c.use_peft = true;
    c.load_in_4bit = coded;
    c.validation_file = c.train_file;
    c.validation_split = 0;
    c.learning_rate = 1e-2;
    ran(c);
    TrainConfig e;
    e.task.clear();
    e.model_name_or_path = c.output_dir;
    e.validation_file = c.train_file;
    e.device = "cpu";
    e.max_eval_samples = 0;
    const EvalResult own = evaluate(e).results.front().second;
    EXPECT_NEAR((*own.rewards)[0], results_of(c)["eval_reward_chosen"].get<double>(), 1e-4)
        << coded;
    EXPECT_GT(std::abs((*own.rewards)[0]), 1e-2);
  }
}

// A model's own dropout stays in its configuration, and plays no part in the training of pairs.
TEST(Preference, KeepsDropoutOutOfTraining) {
  const TemporaryFolder folder;
  spill(folder.path() / "config.json", R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2,
    "n_head": 4, "n_positions": 64, "vocab_size": 257})");
  TrainConfig c = even_pairs(folder.path(), "run");
  c.model.clear();
  c.model_name_or_path = folder.path().string();
  ran(c);
  EXPECT_FLOAT_EQ(metrics_of(c.output_dir).at(0)["loss"].get<float>(), std::log(2.0F));
  const json config = json::parse(slurp(c.output_dir + "/config.json"));
  EXPECT_EQ(config["resid_pdrop"], 0.1);
}

// Two halves of the tokens of a pair are not two losses: the variance between pairs guards the
// bits, and one pair has none.
TEST(Preference, BitsAreGuardedByTheVarianceBetweenPairs) {
  const TemporaryFolder folder;
  for (const int64_t pairs : {1, 16}) {
    TrainConfig c = even_pairs(folder.path(), cat(pairs));
    c.per_device_train_batch_size = pairs;
    c.max_steps = 1;
    c.preset = "gact-l2";
    c.bits_guard = 1e-6;
    const std::string text = ran(c);
    EXPECT_THAT(text, HasSubstr("predicted error of the gradient"));
    EXPECT_EQ(text.find("of the gradient's own variance, raised by") != std::string::npos,
              pairs > 1)
        << text;
  }
}

// Memory is planned for training: a reference that needs more is named.
TEST(Preference, ReferencesBeyondTheBudgetAreNamed) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "large");
  spill(folder.path() / "large/config.json", R"({"model_type": "gpt2", "n_embd": 256, "n_layer": 8,
    "n_head": 4, "n_positions": 64, "vocab_size": 257})");
  TrainConfig large = even_pairs(folder.path(), "reference");
  large.model.clear();
  large.model_name_or_path = (folder.path() / "large").string();
  large.max_steps = 1;
  ran(large);
  TrainConfig c = even_pairs(folder.path(), "run");
  c.reference = large.output_dir;
  ran(c);
  c.output_dir += "2";
  c.budget = "24MiB";
  std::ostringstream console;
  try {
    train(c, console);
    ADD_FAILURE() << console.str();
  } catch (const BudgetError& e) {
    EXPECT_THAT(e.what(), HasSubstr("reference does not fit while it scores pairs: out of memory"));
  }
}

TEST(Preference, RefusesByRule) {
  const TemporaryFolder folder;
  const auto said = [&](auto change) {
    TrainConfig c = preferences(folder.path(), "run");
    change(c);
    std::ostringstream console;
    try {
      EXPECT_NE(train(c, console), kExitOk);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return console.str();
  };
  EXPECT_THAT(said([](TrainConfig& c) { c.label_smoothing_factor = 0.5; }),
              HasSubstr("must be below 0.5, is 0.5"));
  EXPECT_THAT(said([](TrainConfig& c) {
                c.label_smoothing_factor = 0.1;
                c.loss_type = "ipo";
              }),
              HasSubstr("is for --loss_type sigmoid, not ipo"));
  EXPECT_THAT(said([](TrainConfig& c) { c.beta = 0; }), HasSubstr("--beta"));
  EXPECT_THAT(said([](TrainConfig& c) { c.reference = "nowhere"; }), HasSubstr("nowhere"));
  EXPECT_THAT(said([&](TrainConfig& c) { c.train_file = prompts(folder.path(), "x").train_file; }),
              HasSubstr("no column `chosen`"));
}

}  // namespace
}  // namespace compact
