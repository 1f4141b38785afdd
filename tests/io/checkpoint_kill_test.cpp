// SPDX-License-Identifier: Apache-2.0
// A process that saves checkpoint after checkpoint, killed at random moments. COMPACT_KILLS says
// how often (100).
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "tests/io/checkpoint_content.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kKillLimit = 2;

// Saves `step`, step + 1, ... with `mark`; writes each step's number to `report` once its save has
// returned. Never ends by itself.
[[noreturn]] void save_on(const fs::path& folder, int64_t step, int64_t mark, int report) {
  for (;; ++step) {
    const fs::path path = save_checkpoint(folder, step, content_of(step, mark));
    if (::write(report, &step, sizeof step) != sizeof step) ::_exit(1);
    rotate_checkpoints(folder, kKillLimit, path);
  }
}

// The last step that a killed save_on() reported, `before` where none.
int64_t save_and_kill(const fs::path& folder, int64_t step, int64_t mark, int microseconds,
                      int64_t before) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    save_on(folder, step, mark, ends[1]);
  }
  ::close(ends[1]);
  ::usleep(static_cast<useconds_t>(microseconds));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  int64_t last = before;
  while (::read(ends[0], &step, sizeof step) == sizeof step) last = step;
  ::close(ends[0]);
  return last;
}

TEST(CheckpointKill, NothingIsLostAtAnyMoment) {
  const char* wanted = std::getenv("COMPACT_KILLS");
  const int kills = wanted ? std::atoi(wanted) : 100;
  const TemporaryFolder folder(in_memory());
  std::mt19937 random(1);
  size_t listed = 0;
  int64_t newest = 0, saved = 0, leftovers = 0, unreported = 0;
  for (int64_t mark = 1; mark <= kills; ++mark) {
    // Every third process begins with the newest step again.
    const int64_t first = mark % 3 == 0 && newest > 0 ? newest : newest + 1;
    const int64_t last = save_and_kill(folder.path(), first, mark,
                                       std::uniform_int_distribution(0, 40'000)(random), first - 1);
    SCOPED_TRACE(cat("kill ", mark, ": saved ", first, " to ", last));
    saved += last - first + 1;
    for (const std::string& name : folder.names()) leftovers += !name.starts_with("checkpoint-");
    remove_leftovers(folder.path());
    const std::set<int64_t> steps = sound_steps(folder.path());
    if (steps.empty()) {
      EXPECT_EQ(newest, 0);
      EXPECT_LT(last, first);
      continue;
    }
    const int64_t now = *steps.rbegin();
    EXPECT_TRUE(now == std::max(last, newest) || now == std::max(last, newest) + 1);
    unreported += now > std::max(last, newest);
    // The newest two of all that was ever saved are there.
    EXPECT_TRUE(steps.contains(now - 1) || now == 1);
    // A process killed between save and rotation leaves one more, until another rotates.
    EXPECT_LE(steps.size(), std::max<size_t>(kKillLimit, listed) + 1);
    listed = steps.size();
    for (const int64_t step : steps) {
      const auto found = mark_of(folder / cat("checkpoint-", step));
      EXPECT_TRUE(step < first || step > last || found == mark) << step;
      EXPECT_LE(found, mark);
    }
    std::vector<std::string> warnings;
    EXPECT_EQ(newest_valid_checkpoint(folder.path(), warnings), folder / cat("checkpoint-", now));
    newest = now;
  }
  std::printf("%d kills, %lld saves, %lld left something half made, %lld after the rename\n", kills,
              static_cast<long long>(saved), static_cast<long long>(leftovers),
              static_cast<long long>(unreported));
  EXPECT_GT(saved, 0);
}

}  // namespace
}  // namespace compact
