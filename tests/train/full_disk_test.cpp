// SPDX-License-Identifier: Apache-2.0
// A disk that is full for a while does not end a run, and costs nothing but the checkpoints and
// best models that could not be written.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "compact/base/check.h"
#include "compact/codecs/memory_place.h"
#include "compact/io/checkpoint.h"
#include "compact/tasks/task.h"
#include "compact/train/run_evaluation.h"
#include "tests/full_disk.h"
#include "tests/train/text_runs.h"

// In place of libc's: what a disk makes of it that lost state.
static bool g_disk_lost_state = false;
extern "C" int msync(void* begin, size_t bytes, int flags) {
  if (!g_disk_lost_state) return static_cast<int>(syscall(SYS_msync, begin, bytes, flags));
  errno = EIO;
  return -1;
}

namespace compact {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TrainConfig run_of(const fs::path& folder, const std::string& name) {
  TrainConfig c = best_of_pairs(folder, name);
  c.preset = "gact-l2";
  c.metric_for_best_model = "loss";
  c.save_steps = 1;
  c.save_total_limit = 0;
  return c;
}

std::uintmax_t size_of_events(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.")) return entry.file_size();
  }
  return 0;
}

TEST(FullDisk, ForAWhileCostsOnlyCheckpoints) {
  const TemporaryFolder folder;
  const TrainConfig whole = run_of(folder.path(), "whole"), c = run_of(folder.path(), "run");
  ran(whole);
  const FileLimit limit;
  std::ostringstream console;
  const TrainHooks hooks{.stop = [&](int64_t step, int64_t micro) {
    if (micro == 0 && step == 1) limit.set(0);
    if (micro == 0 && step == 4) limit.lift();
    return false;
  }};
  ASSERT_EQ(train(c, console, false, hooks), kExitOk) << console.str();
  std::vector<int64_t> steps;
  for (const CheckpointFolder& checkpoint : list_checkpoints(c.output_dir)) {
    EXPECT_EQ(verify_checkpoint(checkpoint.path), std::nullopt);
    steps.push_back(checkpoint.step);
  }
  EXPECT_THAT(steps, ElementsAre(1, 5, 6));
  EXPECT_THAT(console.str(), HasSubstr("the run goes on without checkpoint-2: "));
  EXPECT_THAT(console.str(), HasSubstr("the run goes on without the best model, of step 3: "));
  EXPECT_THAT(console.str(), HasSubstr("; figures wait until they can be written"));
  for (const char* file : {"model.safetensors", "bits.policy", "best/best_model.json"}) {
    EXPECT_TRUE(slurp(c.output_dir + "/" + file) == slurp(whole.output_dir + "/" + file)) << file;
  }
  EXPECT_EQ(figures(c.output_dir), figures(whole.output_dir));
  EXPECT_EQ(size_of_events(c.output_dir), size_of_events(whole.output_dir));
  for (const fs::path& left : fs::directory_iterator(c.output_dir)) {
    EXPECT_FALSE(left.filename().string().starts_with(".")) << left;
  }
}

// The disk is full from update 3 on, until `room` attempts at the model have failed.
struct EndsOnFullDisk {
  const FileLimit limit;
  std::ostringstream console;
  int64_t attempts = 0;
  TrainHooks hooks(int64_t room, int64_t most) {
    return {.stop =
                [this](int64_t step, int64_t) {
                  if (step == 3) limit.set(0);
                  return false;
                },
            .wait =
                [this, room, most](int64_t made) {
                  EXPECT_EQ(made, ++attempts);
                  if (made == room) limit.lift();
                  return made < most;
                }};
  }
};

TEST(FullDisk, AtTheEndTheModelWaitsForRoom) {
  const TemporaryFolder folder;
  const TrainConfig whole = run_of(folder.path(), "whole"), c = run_of(folder.path(), "run");
  ran(whole);
  EndsOnFullDisk disk;
  ASSERT_EQ(train(c, disk.console, false, disk.hooks(3, 9)), kExitOk) << disk.console.str();
  EXPECT_EQ(disk.attempts, 3);
  const std::string said = disk.console.str(), line = "the model waits until it can be written: ";
  EXPECT_THAT(said, HasSubstr(line));
  EXPECT_EQ(said.find(line), said.rfind(line));
  EXPECT_TRUE(slurp(c.output_dir + "/model.safetensors") ==
              slurp(whole.output_dir + "/best/model.safetensors"));
  EXPECT_EQ(figures(c.output_dir), figures(whole.output_dir));
  EXPECT_TRUE(results_of(c).contains("eval_loss"));
}

TEST(FullDisk, AtTheEndIsAnErrorThatKeepsCheckpoints) {
  const TemporaryFolder folder;
  const TrainConfig c = run_of(folder.path(), "run");
  EndsOnFullDisk disk;
  const std::string error = error_of([&] { train(c, disk.console, false, disk.hooks(9, 2)); });
  disk.limit.lift();
  EXPECT_EQ(disk.attempts, 2);
  EXPECT_THAT(error, HasSubstr("the model of the finished run is not written: make room, then go "
                               "on with --resume_from_checkpoint " +
                               c.output_dir + "/checkpoint-3"));
  std::vector<std::string> warnings;
  const auto newest = newest_valid_checkpoint(c.output_dir, warnings);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->filename(), "checkpoint-3");
  EXPECT_FALSE(fs::exists(c.output_dir + "/model.safetensors"));
}

// The run began elsewhere and has saved nothing here: `latest` would not find that checkpoint.
TEST(FullDisk, AtTheEndIsAnErrorThatNamesTheCheckpointResumedFrom) {
  const TemporaryFolder folder;
  ran(run_of(folder.path(), "first"));
  TrainConfig c = run_of(folder.path(), "second");
  c.save_steps = 0;
  c.resume_from_checkpoint = (folder / "first/checkpoint-2").string();
  EndsOnFullDisk disk;
  const std::string error = error_of([&] { train(c, disk.console, false, disk.hooks(9, 1)); });
  disk.limit.lift();
  EXPECT_THAT(error, HasSubstr("--resume_from_checkpoint " + c.resume_from_checkpoint));
}

TEST(FullDisk, TheBestModelIsTheLastWhereItCannotBeKept) {
  const TemporaryFolder folder;
  const TrainConfig c = run_of(folder.path(), "run");
  std::ostringstream out;
  Console console(out, false);
  std::vector<std::string> warnings;
  const Task task = task_named(c.task).open(c, {}, warnings);
  const auto group = single_group();
  RunEvaluation evaluation(c, task, console, *group);
  fs::create_directories(c.output_dir);
  MetricsWriter metrics(c.output_dir, -1, false, console);
  const std::unique_ptr<Network> network = task.network(c, Policy::preset("off"), at::kCPU);
  RunState state;
  state.step = 1;
  evaluation.validate(*network, state, &metrics);
  ASSERT_EQ(state.best_step, 1);
  state.best_value += 1;  // so that the next is better
  state.step = 2;
  const at::NoGradGuard no_grad;
  const at::Tensor weight = network->named_tensors()[0].second;
  weight.mul_(0.5);
  const at::Tensor before = weight.clone();
  const FileLimit limit;
  limit.set(0);
  EXPECT_FALSE(evaluation.take_best(*network, state, &metrics)) << out.str();
  limit.lift();
  EXPECT_TRUE(at::equal(weight, before));
  EXPECT_THAT(out.str(), HasSubstr("the model of step 2 had the best loss\n"));
}

// State in files that the disk did not take: no checkpoint and no model are made of it.
TEST(FullDisk, ThatLostStateEndsTheRun) {
  for (const int64_t at : {2, 6}) {  // between steps, and at the end
    const TemporaryFolder folder;
    TrainConfig c = run_of(folder.path(), "run");
    c.offload_folder = ".";
    c.save_steps = at == 6 ? 4 : 1;
    c.set = {"moment * = f32+disk"};
    std::ostringstream console;
    const TrainHooks hooks{.stop = [&](int64_t step, int64_t micro) {
      if (micro == 0 && step == at - 1) g_disk_lost_state = true;
      return false;
    }};
    std::string said;
    try {
      train(c, console, false, hooks);
    } catch (const DiskError& e) {
      said = e.what();
    }
    g_disk_lost_state = false;
    EXPECT_THAT(said, HasSubstr(".: the disk did not take weights or optimizer state"));
    EXPECT_THAT(said, HasSubstr("(Input/output error), so they are lost"));
    std::vector<int64_t> steps;
    for (const CheckpointFolder& one : list_checkpoints(c.output_dir)) steps.push_back(one.step);
    EXPECT_THAT(steps, ElementsAre(at == 6 ? 4 : 1));
    EXPECT_FALSE(fs::exists(c.output_dir + "/model.safetensors"));
  }
}

TEST(FullDisk, OnRequestThereIsACheckpointOrAnError) {
  const TemporaryFolder folder;
  TrainConfig c = run_of(folder.path(), "run");
  c.save_steps = 0;
  const FileLimit limit;
  std::ostringstream console;
  const TrainHooks hooks{.stop = [&](int64_t step, int64_t) {
    if (step == 2) limit.set(0);
    return step == 2;
  }};
  EXPECT_THAT(error_of([&] { train(c, console, false, hooks); }),
              HasSubstr("optimizer.safetensors: cannot write"));
}

}  // namespace
}  // namespace compact
