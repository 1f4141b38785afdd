// SPDX-License-Identifier: Apache-2.0
#include "compact/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "tests/full_disk.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

AppendedFile opened(const std::filesystem::path& path) {
  return {FileDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)), path};
}

TEST(InputFile, NamesPointersOfGitLfs) {
  const TemporaryFolder folder;
  spill(folder / "f", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
  EXPECT_NE(error_of([&] { InputFile(folder / "f"); }).find("`git lfs pull`"), std::string::npos);
  spill(folder / "g", "version https://git-lfs\n");
  EXPECT_EQ(InputFile(folder / "g").size(), 24);
}

TEST(AppendedFile, GoesOnAtTheEnd) {
  const TemporaryFolder folder;
  spill(folder / "f", "one\n");
  AppendedFile file = opened(folder / "f");
  file.append("two\n");
  EXPECT_EQ(slurp(folder / "f"), "one\ntwo\n");
  std::filesystem::resize_file(folder / "f", 0);  // somebody makes room
  file.append("three\n");
  EXPECT_EQ(slurp(folder / "f"), "three\n");
}

TEST(AppendedFile, HoldsWholeRecords) {
  const TemporaryFolder folder;
  AppendedFile file = opened(folder / "f");
  file.append("one\n");
  const FileLimit limit;
  limit.set(6);  // of the next record two bytes fit
  EXPECT_NE(error_of([&] { file.append("two\n"); }), "");
  EXPECT_EQ(slurp(folder / "f"), "one\n");
  limit.lift();
  file.append("two\n");
  EXPECT_EQ(slurp(folder / "f"), "one\ntwo\n");
}

}  // namespace
}  // namespace compact
