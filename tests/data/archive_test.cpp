// SPDX-License-Identifier: Apache-2.0
// Where archives end, and how many members they may have; image_archive_test.cpp has the rest.
#include "compact/data/files/archive.h"

#include <gmock/gmock.h>

#include "compact/data/graphs/graph.h"
#include "tests/data/archives.h"
#include "tests/data/files.h"

namespace compact::test {
namespace {

class Archive : public testing::Test {
 protected:
  std::vector<std::string> names(const std::string& bytes) {
    ArchiveReader archive(write_file(path_, bytes), 100);
    std::vector<std::string> all;
    while (archive.next()) {
      all.push_back(archive.name());
      archive.read(1 << 20);
    }
    return all;
  }
  std::string error(const std::string& bytes) {
    return one_line_error_of([&] { names(bytes); });
  }
  static std::string of(const std::string& format, const std::string& filter = "none") {
    return archive_of(
        {{"a/", "", AE_IFDIR}, {"a/x", "some bytes"}, {"a/y", std::string(5000, 'y')}}, format,
        filter);
  }
  TextFolder folder_;
  const std::string path_ = folder_ / "some.tar";
};

TEST_F(Archive, OnlyZerosMayFollowCompressedData) {
  for (const char* filter : {"gzip", "bzip2", "xz", "zstd", "lz4"}) {
    const std::string whole = of("ustar", filter);
    EXPECT_THAT(names(whole), ElementsAre("a/x", "a/y")) << filter;
    for (const std::string& rest : {std::string("garbage!"), std::string(100, '\0') + "x"}) {
      EXPECT_THAT(error(whole + rest), HasSubstr(path_ + ": ")) << filter;
    }
  }
  for (const char* filter : {"gzip", "bzip2", "xz"}) {
    EXPECT_THAT(names(of("ustar", filter) + std::string(100000, '\0')), ElementsAre("a/x", "a/y"))
        << filter;
  }
  for (const char* filter : {"gzip", "bzip2"}) {
    const std::string whole = of("ustar", filter);
    EXPECT_EQ(error(whole + std::string(70000, '\0') + "x"),
              path_ + ": " + filter + " data is corrupt at byte " +
                  std::to_string(whole.size() + 70000) +
                  ": what follows its end is neither more of it nor zeros");
  }
}

TEST_F(Archive, OnlyZerosMayFollowTar) {
  const std::string tar = of("ustar");
  EXPECT_THAT(names(tar + std::string(102400, '\0')), ElementsAre("a/x", "a/y"));
  EXPECT_THAT(error(tar + "x"), HasSubstr(path_ + ": "));
  EXPECT_THAT(error(tar + std::string(600, 'x')), HasSubstr(path_ + ": "));
}

TEST_F(Archive, OnlyItsCommentMayFollowZip) {
  const std::string zip = of("zip");
  for (const std::string& rest : {std::string("x"), std::string(512, '\0'), zip.substr(0, 100)}) {
    EXPECT_EQ(error(zip + rest),
              path_ + ": the zip archive's end record states a comment of 0 bytes, from byte " +
                  std::to_string(zip.size()) + " on " + std::to_string(rest.size()) + " follow");
  }
  const auto commented = [&](const std::string& comment) {
    std::string with = zip + comment;
    with[zip.size() - 2] = static_cast<char>(comment.size() & 0xff);
    with[zip.size() - 1] = static_cast<char>(comment.size() >> 8);
    return with;
  };
  EXPECT_THAT(names(commented("by hand")), ElementsAre("a/x", "a/y"));
  EXPECT_THAT(names(commented(std::string(10000, 'c'))), ElementsAre("a/x", "a/y"));
  EXPECT_THAT(error(commented("by hand") + "!"), HasSubstr("a comment of 7 bytes, from byte"));
  EXPECT_THAT(error(zip + std::string(70000, 'x')), HasSubstr(path_ + ": "));
}

// A small file that tells of very many members.
TEST_F(Archive, MembersAreCounted) {
  std::vector<Member> members;
  for (int i = 0; i < 5000; ++i) members.push_back({std::to_string(i) + "/", "", AE_IFDIR});
  const std::string many = archive_of(members, "ustar", "gzip");
  EXPECT_LT(many.size(), 100000u);
  write_file(path_, many);
  const auto count = [&](int64_t most) {
    ArchiveReader archive(path_, most);
    EXPECT_FALSE(archive.next());
  };
  count(5000);
  EXPECT_EQ(one_line_error_of([&] { count(4999); }),
            path_ + ": must have at most 4999 members, has more");
  EXPECT_EQ(one_line_error_of([&] { read_graph_npz(path_); }),
            path_ + ": must have at most 1024 members, has more");
}

}  // namespace
}  // namespace compact::test
