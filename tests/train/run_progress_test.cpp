// SPDX-License-Identifier: Apache-2.0
// The counts of steps, and when the host waits for them.
#include "compact/train/run_progress.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/train/language_run.h"

namespace compact {
namespace {

at::Tensor scalar(float value) { return at::full({}, value); }

// One late run, of a policy.
struct LateRun {
  explicit LateRun(const std::string& policy)
      : model(small_llama(), Policy::parse(policy, "test"), {.max_length = 8}),
        optimizer(model.parameters(), {}) {}
  Llama model;
  Optimizer optimizer;
  RunState state;
  RunFigures figures;
  std::unique_ptr<Group> group = single_group();
  RunProgress progress{model, optimizer, /*late=*/true, *group, state, figures};

  void step(float loss, float norm) {
    progress.begin();
    progress.add_loss(scalar(loss));
    progress.add_norm(scalar(norm));
    ++state.step;
    progress.end();
  }
};

TEST(RunProgress, CountsStepsOneLateAndAllOfThemOnceSettled) {
  LateRun run("");
  run.step(1, 10);  // by itself, since the first one of a process is slower
  EXPECT_TRUE(run.progress.is_settled());
  EXPECT_EQ(run.figures.step_seconds.size(), 1);
  run.step(2, 20);
  EXPECT_FALSE(run.progress.is_settled());
  EXPECT_EQ(run.state.total_loss, 1);
  run.step(4, 40);
  EXPECT_EQ(run.state.total_loss, 3);
  EXPECT_EQ(run.progress.grad_norm(), 20);
  EXPECT_EQ(run.figures.step_seconds.size(), 1);
  run.progress.settle();
  run.progress.settle();
  EXPECT_EQ(run.state.total_loss, 7);
  EXPECT_EQ(run.state.interval_steps, 3);
  EXPECT_EQ(run.progress.grad_norm(), 40);
  const std::vector<double>& seconds = run.figures.step_seconds;
  ASSERT_EQ(seconds.size(), 3);
  EXPECT_EQ(seconds[1], seconds[2]);  // of their interval
}

TEST(RunProgress, CountsMicroBatchesOfAnUpdateThatStops) {
  LateRun run("");
  run.step(1, 1);
  run.state.micro = 1;
  run.state.step_loss = 0.5;
  run.progress.begin();
  run.progress.add_loss(scalar(2));
  run.progress.stop_inside();
  EXPECT_EQ(run.state.step_loss, 2.5);
  EXPECT_EQ(run.state.total_loss, 1);
}

// Projections are re-drawn by the host: their updates are read before they are made.
TEST(RunProgress, ReadsUpdatesThatRedrawProjectionsBeforeThem) {
  const std::string project = "grad layers.*.attn.qkv = project:rank=0.25,type=srht,period=";
  LateRun never(project + "0"), always(project + "1");
  LateRun released(project + "1,release=true");
  for (LateRun* run : {&never, &always, &released}) run->progress.begin();
  EXPECT_NO_THROW(never.progress.add_norm(scalar(NAN)));
  EXPECT_THROW(always.progress.add_norm(scalar(NAN)), NonFiniteError);
  EXPECT_NO_THROW(always.progress.add_loss(scalar(NAN)));
  EXPECT_THROW(released.progress.add_loss(scalar(NAN)), NonFiniteError);
}

}  // namespace
}  // namespace compact
