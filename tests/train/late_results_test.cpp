// SPDX-License-Identifier: Apache-2.0
// A run whose results are read late, as on a GPU, is the run whose results are read on time.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <regex>

#include "compact/config/option.h"
#include "compact/plan/train_step.h"
#include "compact/train/step_results.h"
#include "tests/temporary_folder.h"
#include "tests/train/language_run.h"

namespace compact {
namespace {

namespace fs = std::filesystem;
using testing::MatchesRegex;

struct LateCase {
  std::string name;
  std::vector<std::pair<std::string, std::string>> options;
};
void PrintTo(const LateCase& c, std::ostream* out) { *out << c.name; }

TrainConfig late_run(const fs::path& folder, const std::string& output) {
  TrainConfig c = language_run(folder, output);
  c.max_steps = 11;
  c.logging_steps = 3;
  c.eval_steps = 4;
  c.save_steps = 5;
  return c;
}

std::string ran(const TrainConfig& c, bool late) {
  std::ostringstream console;
  EXPECT_EQ(train(c, console, false, {.late_results = late}), kExitOk) << console.str();
  return console.str();
}

// The console text without times, memory and the folder.
std::string said(const std::string& console) {
  std::string text;
  std::istringstream lines(console);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("step ") || line.starts_with("bits ")) {
      text += std::regex_replace(line, std::regex("  [0-9,]+ tok/s.*"), "") + "\n";
    }
  }
  return text;
}

class LateResults : public testing::TestWithParam<LateCase> {};

TEST_P(LateResults, ChangeNothing) {
  const TemporaryFolder folder;
  std::string console[2];
  TrainConfig runs[2];
  for (const bool late : {false, true}) {
    TrainConfig& c = runs[late] = late_run(folder.path(), late ? "late" : "on_time");
    for (const auto& [name, value] : GetParam().options) set_option(c, name, {value}, name);
    console[late] = said(ran(c, late));
  }
  EXPECT_FALSE(console[0].empty());
  EXPECT_EQ(console[0], console[1]);
  expect_same_run(runs[0].output_dir, runs[1].output_dir,
                  {"model.safetensors", "checkpoint-5/model.safetensors",
                   "checkpoint-10/optimizer.safetensors"});
}

INSTANTIATE_TEST_SUITE_P(
    Runs, LateResults,
    testing::Values(LateCase{"exact", {{"preset", "exact"}}},
                    LateCase{"one_batch_released",
                             {{"preset", "exact"},
                              {"gradient_accumulation_steps", "1"},
                              {"max_grad_norm", "0"},
                              {"set", "grad * = full:release=true"}}},
                    LateCase{"compact", {{"preset", "compact"}, {"update_proj_gap", "4"}}},
                    LateCase{"muon_f8",
                             {{"preset", "compact"},
                              {"update_proj_gap", "4"},
                              {"optim", "muon"},
                              {"optim_state_dtype", "float8"}}},
                    LateCase{
                        "bits_bf16",
                        {{"preset", "gact-l2"}, {"bits_interval", "4"}, {"dtype", "bfloat16"}}}),
    [](const auto& info) { return info.param.name; });

TEST(LateResultsOfARun, ResumeBitForBit) {
  const TemporaryFolder folder;
  expect_bit_exact_resume(late_run(folder.path(), "whole"), {{3, 1}, {4, 0}},
                          /*late=*/true);
}

// Each decay makes the weights a million times as large, until a step is not finite: which one is a
// matter of the processor's arithmetic. Whether that step is one that is saved or not.
TEST(LateResultsOfARun, NameTheStepThatWasNotFiniteAndLeaveCheckpoints) {
  struct Stopped {
    std::string message;
    std::vector<std::string> checkpoints;
  };
  const auto stopped = [](bool late, int64_t save_steps) {
    const TemporaryFolder folder;
    TrainConfig c = late_run(folder.path(), "out");
    c.learning_rate = 1e5;
    c.weight_decay = 10;
    c.warmup_steps = 0;
    c.save_steps = save_steps;
    c.logging_steps = 100;
    c.eval_steps = 0;
    std::ostringstream console;
    Stopped result;
    result.message =
        error_of<NonFiniteError>([&] { train(c, console, false, {.late_results = late}); });
    for (int64_t step = 1; step <= c.max_steps; ++step) {
      const std::string name = "/checkpoint-" + std::to_string(step);
      if (fs::exists(c.output_dir + name)) {
        result.checkpoints.push_back(slurp(c.output_dir + name + "/model.safetensors"));
      }
    }
    EXPECT_FALSE(fs::exists(c.output_dir + "/model.safetensors"));
    return result;
  };
  int64_t step = 0;
  const std::string first = stopped(/*late=*/false, /*save_steps=*/1).message;
  ASSERT_EQ(std::sscanf(first.c_str(), "step %" SCNd64 ":", &step), 1) << first;
  ASSERT_GE(step, 2) << "no step was fine";
  for (const int64_t save_steps : {step - 1, step}) {
    const Stopped on_time = stopped(false, save_steps), late = stopped(true, save_steps);
    EXPECT_EQ(on_time.message, first);
    const std::string about =
        "; (weights of [a-z0-9._]+ are not finite|all trained weights are finite, the largest is "
        "[0-9.e+]+ in [a-z0-9._]+); what helps: a lower --learning_rate than 1e\\+05, "
        "--warmup_steps, of which there are none";
    EXPECT_THAT(first, MatchesRegex("step [0-9]+: the (loss is [a-z-]+|gradient of [a-z0-9._]+ is "
                                    "not finite); stopped before the update" +
                                    about));
    EXPECT_THAT(late.message, MatchesRegex(cat("step ", step,
                                               ": the (loss is [a-z-]+|gradient is not finite); "
                                               "neither its update was made nor one after it",
                                               about)));
    EXPECT_EQ(on_time.checkpoints.size(), save_steps < step ? 1 : 0);
    EXPECT_TRUE(on_time.checkpoints == late.checkpoints);
  }
}

// Neither that step nor the next one, whose own numbers are fine.
TEST(LateResultsOfARun, HoldBackTheUpdatesBehindAStepThatWasNotFinite) {
  const Llama model(small_llama(), Policy::preset("exact"), {.max_length = 8});
  Optimizer optimizer(model.parameters(), {});
  StepResults results(at::kCPU, optimizer, /*late=*/true, /*releases=*/false);
  const at::Tensor ids = at::arange(16, at::kLong).view({2, 8});
  const auto step = [&](int64_t number, double loss_scale) {
    results.begin(number, 0);
    train_step(model, optimizer,
               {.loss_scale = loss_scale,
                .learning_rate = 0.01,
                .max_grad_norm = 1,
                .guard = results.guard()},
               [&](int64_t) {
                 return StepInputs{{ids}, ids};
               },
               {.before_backward = [&](const at::Tensor& loss) { results.add_loss(loss); },
                .before_update = [&](const at::Tensor& norm) { results.add_norm(norm); }});
  };
  const auto weights = [&] {
    std::vector<at::Tensor> all;
    for (const Parameter* p : model.parameters()) all.push_back(p->weight.detach().clone());
    for (const auto& [name, t] : optimizer.state().tensors) all.push_back(t.clone());
    return all;
  };
  const auto same = [](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return at::equal(x, y); });
  };
  const std::vector<at::Tensor> fresh = weights();
  step(1, 0.1);
  const std::vector<at::Tensor> before = weights();
  EXPECT_FALSE(same(fresh, before));
  step(2, NAN);
  EXPECT_EQ(results.take(false).size(), 1);
  step(3, 0.1);
  EXPECT_TRUE(same(weights(), before));
  EXPECT_THROW(results.take(false), NonFiniteError);
}

}  // namespace
}  // namespace compact
