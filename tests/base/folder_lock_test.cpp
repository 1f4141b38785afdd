// SPDX-License-Identifier: Apache-2.0
// A folder has one writer; a lock ends with its process.
#include "compact/base/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/text.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(FolderLock, SecondIsToldOfTheFirst) {
  const TemporaryFolder folder;
  const FolderLock first(folder.path());
  EXPECT_TRUE(first.held());
  const std::string line = slurp(folder / std::string(kLockName));
  EXPECT_THAT(line, AllOf(HasSubstr(cat("process ", ::getpid(), " on ")), HasSubstr(", since 20"),
                          HasSubstr(" UTC\n")));
  EXPECT_THAT(error_of([&] { FolderLock{folder.path()}; }),
              AllOf(HasSubstr(folder.path().string() + ": process "), HasSubstr("writes here")));
  EXPECT_EQ(slurp(folder / std::string(kLockName)), line);
}

TEST(FolderLock, LeavesNothingButWhatWasWritten) {
  const TemporaryFolder folder;
  for (const char* path : {"a/b/c", "a/b/c/"}) {
    { const FolderLock lock(folder / path); }
    EXPECT_THAT(folder.names(), IsEmpty()) << path;
  }
  {
    const FolderLock lock(folder / "a/b");
    spill(folder / "a/kept", "x");
  }
  EXPECT_THAT(folder.names(), ElementsAre("a"));
  EXPECT_FALSE(fs::exists(folder / "a/b"));
  { const FolderLock again(folder / "a"); }
  EXPECT_TRUE(fs::exists(folder / "a/kept"));
}

TEST(FolderLock, OfAKilledProcessIsFree) {
  const TemporaryFolder folder;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock(folder.path());
    if (::write(ends[1], "x", 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  EXPECT_THAT(error_of([&] { FolderLock{folder.path()}; }),
              HasSubstr(cat("process ", child, " on ")));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_THAT(folder.names(), ElementsAre(kLockName));
  { EXPECT_TRUE(FolderLock(folder.path()).held()); }
  EXPECT_THAT(folder.names(), IsEmpty());
  ::close(ends[0]);
  ::close(ends[1]);
}

// A holder that could not write who it is, for example where the disk was full.
TEST(FolderLock, OfAnUnnamedHolderHoldsAsWell) {
  const TemporaryFolder folder;
  const FolderLock lock(folder.path());
  spill(folder / std::string(kLockName), "\x1b[2J");
  EXPECT_THAT(error_of([&] { FolderLock{folder.path()}; }),
              HasSubstr(": another process, writes here"));
}

}  // namespace
}  // namespace compact
