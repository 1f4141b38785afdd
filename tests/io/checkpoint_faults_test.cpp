// SPDX-License-Identifier: Apache-2.0
// A save in which each system call in turn fails, or is the last of its process: what was sound
// before is sound afterwards, the new checkpoint is there whole or not at all, and the next save
// works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/io/checkpoint.h"
#include "compact/io/model_weights.h"
#include "tests/io/checkpoint_content.h"
#include "tests/io/system_faults.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

namespace fs = std::filesystem;
using faults::Act;
using faults::plan;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSubsetOf;

constexpr int64_t kLimit = 3;  // of checkpoints kept
constexpr int64_t kMostCalls = 2000;

struct Case {
  const char* name;
  int64_t step;      // saved; 3 is there already
  bool no_exchange;  // the file system cannot swap two names
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Saves as a run does: the checkpoint, then the rotation.
void save(const fs::path& folder, int64_t step, int64_t mark) {
  const fs::path path = save_checkpoint(folder, step, content_of(step, mark));
  rotate_checkpoints(folder, kLimit, path);
}

// save() under `act` at call `at`. Returns the message of the InputError, "" without one.
std::string save_under(const Case& c, const fs::path& folder, Act act, int64_t at) {
  plan = {.armed = true, .at = at, .act = act, .no_exchange = c.no_exchange};
  const std::string message = error_of([&] { save(folder, c.step, /*mark=*/1); });
  plan.armed = false;
  return message;
}

bool only_checkpoints(const TemporaryFolder& folder) {
  return std::ranges::all_of(
      folder.names(), [](const std::string& name) { return name.starts_with("checkpoint-"); });
}

void make_three(const fs::path& folder) {
  for (int64_t step : {1, 2, 3}) save(folder, step, 0);
}

// The conditions that hold after a save of c.step that may have been cut off anywhere.
void check_folder(const Case& c, const fs::path& folder, bool saved, const std::string& where) {
  SCOPED_TRACE(where);
  remove_leftovers(folder);  // as a run that resumes does
  const std::set<int64_t> steps = sound_steps(folder);
  const bool there = steps.contains(c.step) && mark_of(folder / cat("checkpoint-", c.step)) == 1;
  EXPECT_TRUE(there || !saved);
  // Step 1 may go once step 4 is there, and nothing else.
  EXPECT_TRUE(steps.contains(2) && steps.contains(3));
  EXPECT_TRUE(steps.contains(1) || (c.step == 4 && there));
  std::vector<std::string> warnings;
  const auto newest = newest_valid_checkpoint(folder, warnings);
  ASSERT_TRUE(newest);
  EXPECT_EQ(*newest, folder / cat("checkpoint-", *steps.rbegin()));
  EXPECT_EQ(warnings.size(), 0u);
  save(folder, c.step, 2);
  EXPECT_EQ(mark_of(folder / cat("checkpoint-", c.step)), 2);
  EXPECT_THAT(sound_steps(folder), IsSubsetOf({1, 2, 3, 4}));
}

class CheckpointFaults : public ::testing::TestWithParam<Case> {};

TEST_P(CheckpointFaults, EveryCallFails) {
  for (const Act act : {Act::kFail, Act::kFailFromThen}) {
    int64_t at = 1, refused = 0;
    for (bool reached = true; reached; ++at) {
      const TemporaryFolder folder(in_memory());
      make_three(folder.path());
      const std::string message = save_under(GetParam(), folder.path(), act, at);
      reached = plan.calls >= at;
      const std::string where = reached ? cat(at, ": ", plan.log[at - 1]) : "";
      if (!message.empty()) ++refused;
      if (!message.empty()) {
        EXPECT_THAT(message, HasSubstr(folder.path().string())) << where;
      }
      // Cleaning up did not fail: the fault was before.
      const bool in_place = mark_of(folder / cat("checkpoint-", GetParam().step)) == 1;
      if (!message.empty() && act == Act::kFail && !in_place) {
        EXPECT_TRUE(only_checkpoints(folder)) << where;
      }
      check_folder(GetParam(), folder.path(), message.empty(), where);
      ASSERT_LT(at, kMostCalls);
    }
    EXPECT_GT(refused, 30);
    RecordProperty(act == Act::kFail ? "calls" : "calls_from_then", static_cast<int>(at - 2));
    RecordProperty(act == Act::kFail ? "refused" : "refused_from_then", static_cast<int>(refused));
  }
}

TEST_P(CheckpointFaults, EveryCallIsTheLast) {
  int64_t at = 1;
  for (bool killed = true; killed; ++at) {
    const TemporaryFolder folder(in_memory());
    make_three(folder.path());
    const pid_t child = ::fork();
    if (child == 0) {
      save_under(GetParam(), folder.path(), Act::kKill, at);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    killed = WIFSIGNALED(status);
    check_folder(GetParam(), folder.path(), !killed, cat("call ", at));
    EXPECT_TRUE(only_checkpoints(folder)) << "call " << at;
    ASSERT_LT(at, kMostCalls);
  }
  EXPECT_GT(at, 50);
  RecordProperty("calls", static_cast<int>(at - 2));
}

INSTANTIATE_TEST_SUITE_P(Saves, CheckpointFaults,
                         ::testing::Values(Case{"a_new_step", 4, false},
                                           Case{"a_step_again", 3, false},
                                           Case{"without_exchange", 3, true}),
                         [](const auto& info) { return info.param.name; });

TEST(CheckpointFault, ShortWritesAreContinued) {
  const TemporaryFolder folder(in_memory());
  plan = {.armed = true, .act = Act::kShortWrite};
  save(folder.path(), 1, 0);
  plan.armed = false;
  EXPECT_THAT(sound_steps(folder.path()), ElementsAre(1));
}

// Position of the first call from `from` on that begins so; the number of calls where none does.
size_t find_call(const std::vector<std::string>& log, const std::string& begin, size_t from = 0) {
  while (from < log.size() && !log[from].starts_with(begin)) ++from;
  return from;
}

// Power may fail anywhere: each file is on the disk before its name, all of the folder before the
// folder's name, that name before an older checkpoint goes.
TEST(CheckpointFault, WhatIsNamedIsOnTheDisk) {
  const TemporaryFolder folder(in_memory());
  make_three(folder.path());
  plan = {.armed = true};
  save(folder.path(), 4, 0);
  plan.armed = false;
  const std::vector<std::string>& log = plan.log;
  const std::string made = (folder / "checkpoint-4").string();
  size_t named = 0;  // the rename that makes the checkpoint
  while (named < log.size() && !(log[named].starts_with("rename ") && log[named].ends_with(made))) {
    ++named;
  }
  ASSERT_LT(named, log.size());
  const std::string temporary = log[named].substr(7, log[named].find(' ', 7) - 7);
  int files = 0;
  size_t last_file = 0;
  for (size_t i = 0; i < named; ++i) {
    if (!log[i].starts_with("rename " + temporary + "/")) continue;
    ++files;
    last_file = i;
    const std::string from = log[i].substr(7, log[i].find(' ', 7) - 7);
    size_t last_write = 0, last_sync = 0;
    for (size_t j = 0; j < i; ++j) {
      if (log[j] == "pwrite " + from) last_write = j;
      if (log[j] == "fsync " + from) last_sync = j;
    }
    EXPECT_GT(last_write, 0u) << from;
    EXPECT_GT(last_sync, last_write) << from;
  }
  EXPECT_EQ(files, 5);
  const auto is_between = [&](const std::string& call, size_t from, size_t to) {
    return std::find(log.begin() + static_cast<int64_t>(from),
                     log.begin() + static_cast<int64_t>(to),
                     call) != log.begin() + static_cast<int64_t>(to);
  };
  EXPECT_TRUE(is_between("fsync " + temporary, last_file, named));
  const size_t rotated = find_call(log, "rename " + (folder / "checkpoint-1").string(), named);
  ASSERT_LT(rotated, log.size());
  EXPECT_TRUE(is_between("fsync " + folder.path().string(), named, rotated));
}

// A model's folder: what loads afterwards is the old model or the new one, never a part.
TEST(CheckpointFault, ModelsAreWrittenWhole) {
  const NamedTensors before = {{"weight", at::zeros({9})}}, after = {{"weight", at::ones({9})}};
  const nlohmann::json config = {{"model_type", "llama"}};
  bool reached = true;
  for (int64_t at = 1; reached; ++at) {
    for (const bool replaces : {false, true}) {
      const TemporaryFolder folder(in_memory());
      if (replaces) write_model_folder(folder.path(), before, config);
      plan = {.armed = true, .at = at, .act = Act::kFail};
      const std::string message =
          error_of([&] { write_model_folder(folder.path(), after, config); });
      plan.armed = false;
      reached = plan.calls >= at;
      const bool there = fs::exists(folder / "model.safetensors");
      EXPECT_TRUE(there || (!message.empty() && !replaces)) << at;
      if (there) {
        const float value = ModelWeights(folder.path()).read("weight").sum().item<float>();
        EXPECT_TRUE(value == 9 || (value == 0 && replaces && !message.empty())) << at;
        EXPECT_EQ(slurp(folder / "config.json"), "{\n  \"model_type\": \"llama\"\n}\n") << at;
      }
    }
  }
}

}  // namespace
}  // namespace compact
