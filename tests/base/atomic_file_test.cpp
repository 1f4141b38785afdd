// SPDX-License-Identifier: Apache-2.0
#include "compact/base/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/full_disk.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(AtomicFile, WritesEverySize) {
  const TemporaryFolder folder;
  for (size_t size : {0, 1, 7, 4096, 100'001}) {
    const std::string content(size, 'x');
    write_file_atomically(folder / "f", content);
    EXPECT_EQ(slurp(folder / "f"), content);
  }
  EXPECT_THAT(folder.names(), ElementsAre("f"));
}

TEST(AtomicFile, NothingBeforeCommitAndNothingWithoutIt) {
  const TemporaryFolder folder;
  spill(folder / "f", "old");
  {
    AtomicFileWriter file(folder / "f");
    file.write("new");
    EXPECT_EQ(slurp(folder / "f"), "old");
  }
  EXPECT_EQ(slurp(folder / "f"), "old");
  EXPECT_THAT(folder.names(), ElementsAre("f"));
}

TEST(AtomicFile, WriteAtLeavesTheAppendingPlace) {
  const TemporaryFolder folder;
  AtomicFileWriter file(folder / "f");
  file.write("ab");
  file.write_at(4, "ef", 2);
  file.write("cxyz");
  file.write_at(3, "def", 3);  // over bytes that are still in the buffer
  file.commit();
  EXPECT_EQ(slurp(folder / "f"), "abcdef");
  EXPECT_THROW(file.write("more"), InputError);
  EXPECT_THROW(file.commit(), InputError);
}

TEST(AtomicFile, SmallAndLargePiecesKeepTheirOrder) {
  const TemporaryFolder folder;
  AtomicFileWriter file(folder / "f");
  std::string expected;
  for (size_t size : {1, 3, 262'143, 1, 1, 262'144, 5, 262'145, 700'000, 0, 2}) {
    const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
    file.write(piece);
    expected += piece;
  }
  file.write_at(2, "##", 2);
  expected.replace(2, 2, "##");
  file.commit();
  EXPECT_EQ(slurp(folder / "f"), expected);
}

TEST(AtomicFile, ErrorsNameThePathAndTheReason) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { write_file_atomically(folder / "no/f", ""); }),
              AllOf(HasSubstr((folder / "no/f").string()), HasSubstr("No such file")));
  EXPECT_THAT(error_of([&] { write_file_atomically(folder.path(), ""); }),
              HasSubstr("is a folder"));
  EXPECT_THAT(error_of([&] { write_file_atomically(folder / "..", ""); }), HasSubstr("must name"));
  EXPECT_THAT(error_of([&] { write_file_atomically(folder / std::string(300, 'n'), ""); }),
              HasSubstr("too long"));
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(AtomicFile, FullDiskLeavesTheOldFile) {
  const TemporaryFolder folder;
  spill(folder / "f", "old");
  const std::string error = error_on_full_disk(
      1000, [&] { write_file_atomically(folder / "f", std::string(5000, 'x')); });
  EXPECT_THAT(error, AllOf(HasSubstr((folder / "f").string()), HasSubstr("cannot write")));
  EXPECT_EQ(slurp(folder / "f"), "old");
  EXPECT_THAT(folder.names(), ElementsAre("f"));
}

TEST(AtomicFile, LongestNamesWork) {
  const TemporaryFolder folder;
  const std::string name(255, 'n');
  write_file_atomically(folder / name, "x");
  EXPECT_THAT(folder.names(), ElementsAre(name));
}

TEST(AtomicDirectory, AppearsWholeAndReplaces) {
  const TemporaryFolder folder;
  const fs::path path = folder / "d";
  write_directory_atomically(path, [&](const fs::path& to) {
    EXPECT_FALSE(fs::exists(path));
    spill(to / "a", "1");
    fs::create_directory(to / "sub");
    spill(to / "sub/b", "2");
  });
  EXPECT_EQ(slurp(path / "sub/b"), "2");
  write_directory_atomically(path, [&](const fs::path& to) { spill(to / "c", "3"); });
  EXPECT_FALSE(fs::exists(path / "a"));
  EXPECT_EQ(slurp(path / "c"), "3");
  EXPECT_THAT(folder.names(), ElementsAre("d"));
}

TEST(AtomicDirectory, ExceptionsAndFilesInTheWayLeaveThePlace) {
  const TemporaryFolder folder;
  write_directory_atomically(folder / "d/", [&](const fs::path& to) { spill(to / "a", "1"); });
  EXPECT_THROW(write_directory_atomically(folder / "d",
                                          [&](const fs::path& to) {
                                            spill(to / "b", "2");
                                            throw std::runtime_error("stop");
                                          }),
               std::runtime_error);
  EXPECT_EQ(slurp(folder / "d/a"), "1");
  EXPECT_THAT(folder.names(), ElementsAre("d"));
  spill(folder / "f", "file");
  EXPECT_THAT(error_of([&] { write_directory_atomically(folder / "f", [](const fs::path&) {}); }),
              HasSubstr("is a file"));
  EXPECT_THAT(folder.names(), ElementsAre("d", "f"));
}

TEST(Leftovers, OfDeadProcessesGoThoseOfLivingOnesStay) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    // Killed in the middle: no destructor runs.
    AtomicFileWriter file(folder / "f");
    write_directory_atomically(folder / "d", [](const fs::path&) { ::_exit(0); });
  }
  ::waitpid(child, nullptr, 0);
  ASSERT_EQ(folder.names().size(), 2u);
  AtomicFileWriter own(folder / "own");
  spill(folder / ".compact-tmp-strange", "");
  remove_leftovers(folder.path());
  EXPECT_EQ(folder.names().size(), 2u);
  const std::string name = folder.names()[0];
  ASSERT_THAT(name, HasSubstr(cat("-", ::getpid(), "-")));
  const std::string host = name.substr(0, name.find(cat("-", ::getpid(), "-")));
  own.write("x");
  own.commit();
  EXPECT_THAT(folder.names(), ElementsAre(".compact-tmp-strange", "own"));
  // A process of the past that had the id of this one.
  spill(folder / cat(host, "-", ::getpid(), "-123-0"), "");
  remove_leftovers(folder.path());
  EXPECT_THAT(folder.names(), ElementsAre(".compact-tmp-strange", "own"));
}

// On a file system that hosts share, a process that does not live here may live there.
TEST(Leftovers, OfOtherHostsGoOnlyWhereNobodyElseWrites) {
  const TemporaryFolder folder;
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ::waitpid(dead, nullptr, 0);
  const std::string written = cat(".compact-tmp-77-", dead, "-123-0");
  const std::string aside = cat(".compact-old-77-", dead, "-123-1-checkpoint-5");
  spill(folder / written, "");
  fs::create_directory(folder / aside);
  remove_leftovers(folder.path());
  EXPECT_THAT(folder.names(), ElementsAre(aside, written));
  const AtomicFileWriter own(folder / "own");
  remove_leftovers(folder.path(), /*alone=*/true);
  EXPECT_EQ(folder.names().size(), 2u);  // the one being written, and the one moved back
  EXPECT_TRUE(fs::exists(folder / "checkpoint-5"));
}

TEST(RemoveAtomically, RemovesFoldersAndSaysWhatIsMissing) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "d");
  spill(folder / "d/a", "1");
  remove_atomically(folder / "d");
  EXPECT_THAT(folder.names(), IsEmpty());
  EXPECT_THAT(error_of([&] { remove_atomically(folder / "d"); }), HasSubstr("cannot remove"));
}

}  // namespace
}  // namespace compact
