// SPDX-License-Identifier: Apache-2.0
// A run's folder holds the files of one run, as they were written.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include "compact/base/folder_lock.h"
#include "compact/config/memory_limit.h"
#include "tests/train/text_runs.h"

namespace compact {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunFolder, HasOneOwner) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  c.save_steps = 2;
  TrainConfig other = c;
  other.overwrite_output_dir = true;
  TrainConfig resumed = c;
  resumed.resume_from_checkpoint = "latest";
  std::ostringstream console;
  std::vector<std::string> errors;
  const TrainHooks hooks{.stop = [&](int64_t step, int64_t micro) {
    if (step != 4 || micro != 0) return false;
    for (const TrainConfig& second : {other, resumed}) {
      errors.push_back(error_of([&] { train(second, console); }));
      EXPECT_TRUE(fs::exists(folder / "run/checkpoint-4"));
    }
    return false;
  }};
  ASSERT_EQ(train(c, console, false, hooks), kExitOk) << console.str();
  ASSERT_EQ(errors.size(), 2u);
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr(c.output_dir), HasSubstr("writes here: wait for its end")));
  }
  EXPECT_FALSE(fs::exists(folder / ("run/" + std::string(kLockName))));
  ran(other);
}

TEST(RunFolder, IsNotMadeByARunThatCannotBegin) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "a/run");
  c.train_file = {(folder / "missing.tsv").string()};
  EXPECT_NE(error_of([&] { ran(c); }), "");
  EXPECT_FALSE(fs::exists(folder / "a"));
}

TEST(RunFolder, OfARunThatOnlyMeasuresHasFiguresAlone) {
  const TemporaryFolder folder;
  TrainConfig c = best_of_pairs(folder.path(), "run");
  c.eval_steps = c.save_steps = 1;
  ran(c);
  const auto whole = results_of(c);
  c.measure_steps = 2;
  c.overwrite_output_dir = true;
  ran(c);
  const auto results = results_of(c);
  EXPECT_EQ(results["steps"], 2);
  EXPECT_GT(results["step_seconds"], 0);
  EXPECT_EQ(results["memory/peak_bytes"], whole["memory/peak_bytes"]);
  EXPECT_TRUE(whole.contains("eval_loss"));
  EXPECT_FALSE(results.contains("eval_loss"));
  for (const char* file : {"model.safetensors", "best", "checkpoint-1", "checkpoint-2"}) {
    EXPECT_FALSE(fs::exists(folder / "run" / file)) << file;
  }
}

void flip_a_bit(const fs::path& file) {
  std::string bytes = slurp(file);
  ASSERT_FALSE(bytes.empty());
  bytes[bytes.size() - bytes.size() / 3] ^= 4;
  spill(file, bytes);
}

TEST(RunFolder, DamagedModelsAreRefused) {
  const TemporaryFolder folder;
  TrainConfig c = best_of_pairs(folder.path(), "run");
  c.save_steps = 2;
  c.save_total_limit = 0;
  ran(c);
  for (const char* part : {"", "/best", "/checkpoint-2"}) {
    TrainConfig from = c;
    from.model.clear();
    from.tokenizer.clear();
    from.model_name_or_path = c.output_dir + part;
    from.output_dir = (folder / "more").string();
    from.overwrite_output_dir = true;
    from.max_eval_samples = 0;
    EXPECT_EQ(error_of([&] { evaluate(from); }), "") << part;
    flip_a_bit(from.model_name_or_path + "/model.safetensors");
    const auto names_it =
        HasSubstr(from.model_name_or_path + "/model.safetensors: is damaged: the checksum");
    EXPECT_THAT(error_of([&] { evaluate(from); }), names_it);
    EXPECT_THAT(error_of([&] { ran(from); }), names_it);
  }
}

TEST(RunFolder, ResumedRunSaysWhereTheMachineIsAnother) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  c.threads = 0;
  c.save_steps = 2;
  c.save_total_limit = 0;
  at::set_num_threads(2);
  ran(c);
  c.resume_from_checkpoint = (folder / "run/checkpoint-2").string();
  EXPECT_THAT(ran(c), Not(HasSubstr("from here on it differs")));
  at::set_num_threads(1);
  EXPECT_THAT(ran(c), AllOf(HasSubstr("the run goes on with 1 thread, "),
                            HasSubstr(", after 2 threads, ")));
  at::set_num_threads(2);
  c.threads = 2;  // another option, the same number
  EXPECT_THAT(ran(c), Not(HasSubstr("from here on it differs")));
}

TEST(RunFolder, SaysWhatTheProcessTook) {
  const std::optional<int64_t> peak = resident_peak();
  if (!peak) GTEST_SKIP() << "this system has no /proc/self/status";
  const int64_t now = *peak - (int64_t{1} << 20);  // the kernel counts in batches of pages
  const TemporaryFolder folder;
  const TrainConfig c = sentences(folder.path(), "run");
  EXPECT_THAT(ran(c), HasSubstr(", process "));
  EXPECT_THAT(slurp(c.output_dir + "/memory.txt"), HasSubstr("resident at most, all included"));
  const auto bytes = [results = results_of(c)](const char* name) {
    return results.at(name).get<int64_t>();
  };
  EXPECT_GE(bytes("memory/resident_bytes"), now);
  EXPECT_GT(bytes("memory/resident_bytes"), bytes("memory/peak_bytes"));
  EXPECT_GE(metrics_of(c.output_dir).at(0)["memory/resident_bytes"].get<int64_t>(), now);
}

}  // namespace
}  // namespace compact
