// SPDX-License-Identifier: Apache-2.0
// Steps that are run again with what the recorded one was given: all that changes reaches them by
// way of the device's memory, so that a CUDA graph may replay them.
#include "compact/train/step_graph.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/config/option.h"
#include "tests/temporary_folder.h"
#include "tests/train/language_run.h"

namespace compact {
namespace {

namespace fs = std::filesystem;
using Options = std::vector<std::pair<std::string, std::string>>;
using testing::HasSubstr;

struct ReplayCase {
  std::string name;
  Options options;
};
void PrintTo(const ReplayCase& c, std::ostream* out) { *out << c.name; }

TrainConfig with(TrainConfig c, const Options& options) {
  for (const auto& [name, value] : options) set_option(c, name, {value}, name);
  return c;
}

std::string ran(const TrainConfig& c, bool replayed) {
  std::ostringstream console;
  EXPECT_EQ(train(c, console, false, {.late_results = true, .replayed_steps = replayed}), kExitOk)
      << console.str();
  return console.str();
}

class ReplayedSteps : public testing::TestWithParam<ReplayCase> {};

TEST_P(ReplayedSteps, GiveTheBitsOfStepsThatAreLaunched) {
  const TemporaryFolder folder;
  TrainConfig runs[2];
  std::string console;
  for (const bool replayed : {false, true}) {
    TrainConfig& c = runs[replayed] =
        with(language_run(folder.path(), replayed ? "replayed" : "launched"), GetParam().options);
    c.max_steps = 9;
    c.save_steps = 5;
    c.eval_steps = 4;
    console = ran(c, replayed);
  }
  EXPECT_THAT(console, HasSubstr("replayed 7 of 9 steps from a graph"));
  expect_same_run(runs[0].output_dir, runs[1].output_dir,
                  {"model.safetensors", "checkpoint-5/model.safetensors",
                   "checkpoint-5/optimizer.safetensors"});
}

INSTANTIATE_TEST_SUITE_P(
    Runs, ReplayedSteps,
    testing::Values(ReplayCase{"f32", {{"preset", "exact"}}},
                    ReplayCase{"f32_one_batch",
                               {{"preset", "off"}, {"gradient_accumulation_steps", "1"}}},
                    ReplayCase{"bf16", {{"preset", "recompute"}, {"dtype", "bfloat16"}}},
                    ReplayCase{"bf16_masters",
                               {{"dtype", "bfloat16"},
                                {"master_weights", "true"},
                                {"gradient_accumulation_steps", "1"}}},
                    ReplayCase{"adam",
                               {{"optim", "adam"},
                                {"weight_decay", "0"},
                                {"max_grad_norm", "0"},
                                {"optim_state_dtype", "bfloat16"}}}),
    [](const auto& info) { return info.param.name; });

TEST(StepGraphOfARun, ResumesBitForBit) {
  const TemporaryFolder folder;
  TrainConfig c = language_run(folder.path(), "whole");
  c.max_steps = 9;
  c.save_steps = 5;
  ran(c, false);
  const std::string whole = slurp(fs::path(c.output_dir) / "model.safetensors");
  c.resume_from_checkpoint = (fs::path(c.output_dir) / "checkpoint-5").string();
  EXPECT_THAT(ran(c, true), HasSubstr("replayed 2 of 4 steps from a graph"));
  EXPECT_TRUE(slurp(fs::path(c.output_dir) / "model.safetensors") == whole);
}

TEST(StepGraphOfARun, IsRefusedByWhatChanges) {
  const TemporaryFolder folder;
  const std::vector<std::pair<Options, std::string>> cases = {
      {{{"preset", "compact"}}, "has its gradient projected"},
      {{{"preset", "gact-l1"}}, "random bits are others in every step"},
      {{{"optim_state_dtype", "float8"}}, "has packed moments"},
      {{{"optim", "muon"}}, "is updated by muon"},
      {{{"optim", "adam"}}, "is updated by adam with weight decay 0.1"},
      {{{"gradient_accumulation_steps", "1"},
        {"max_grad_norm", "0"},
        {"set", "grad * = full:release=true"}},
       "is updated inside the backward pass"},
      {{{"set", "slot layers.*.attn.input = offload"}}, "copies between GPU and host"},
      {{{"dropout", "0.1"}}, "attention`, whose random bits are others in every step"},
  };
  for (const auto& [options, words] : cases) {
    const TrainConfig c = with(language_run(folder.path(), "refused"), options);
    std::ostringstream console;
    EXPECT_THAT(
        error_of([&] { train(c, console, false, {.late_results = true, .replayed_steps = true}); }),
        testing::AllOf(HasSubstr(words), testing::StartsWith("--cuda_graph: ")));
  }
}

TEST(StepGraphOfARun, NeedsAGpu) {
  const TemporaryFolder folder;
  TrainConfig c = language_run(folder.path(), "none");
  c.cuda_graph = true;
  std::ostringstream console;
  EXPECT_THAT(error_of([&] { train(c, console); }),
              testing::StrEq("--cuda_graph needs an NVIDIA GPU; this run is on cpu"));
}

// A step with other targets that count, or of another length, is launched, and needs the memory
// that the recording holds: that is released before it.
TEST(StepGraph, TakesOnlyStepsOfTheRecordedForm) {
  const Llama model(small_llama(), Policy::preset("exact"), {.max_length = 8});
  OptimizerOptions options;
  Optimizer optimizer(model.parameters(), options);
  RunState state;
  RunFigures figures;
  const std::unique_ptr<Group> group = single_group();
  RunProgress progress(model, optimizer, /*late=*/true, *group, state, figures);
  StepGraph graph(at::kCPU);
  const auto step = [&](double scale, int64_t length) {
    const at::Tensor ids = at::arange(2 * length, at::kLong).reshape({2, length});
    progress.begin();
    optimizer.prepare(1e-3);
    const StepSettings settings{
        .loss_scale = scale, .learning_rate = 1e-3, .guard = progress.guard()};
    const bool replayed = graph.run(model, optimizer, settings, {{ids, ids.clone()}}, progress);
    if (!replayed) {
      StepHooks hooks;
      hooks.before_backward = [&](const at::Tensor& loss) { progress.add_loss(loss); };
      hooks.before_update = [&](const at::Tensor& norm) { progress.add_norm(norm); };
      train_step(
          model, optimizer, settings,
          [&](int64_t) {
            return StepInputs{{ids}, ids.clone()};
          },
          hooks);
    }
    ++state.step;
    progress.end();
    return replayed;
  };
  std::vector<bool> replayed;
  for (const double scale : {1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 0.5, 0.5, 0.5, 0.5, 1.0}) {
    replayed.push_back(step(scale, 8));
  }
  EXPECT_EQ(replayed, (std::vector<bool>{false, false, true, true, false, false, false, false, true,
                                         true, false}));
  for (const bool expected : {false, false, true}) EXPECT_EQ(step(0.5, 8), expected);
  EXPECT_FALSE(step(0.5, 6));
  EXPECT_FALSE(step(0.5, 8));
  EXPECT_EQ(optimizer.updates(), 16);
}

}  // namespace
}  // namespace compact
