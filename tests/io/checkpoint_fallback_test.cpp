// SPDX-License-Identifier: Apache-2.0
// Damage of the newest checkpoint, by place: never taken, named in the warning, and the one before
// is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cctype>

#include "tests/io/checkpoint_content.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointFallback : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (int64_t step : {1, 2}) save_checkpoint(folder_.path(), step, content_of(step));
    file_ = folder_ / "checkpoint-2" / GetParam();
    sound_ = slurp(file_);
  }

  // The newest is passed over, with a line that names the file, and the one before is sound.
  void expect_fallback(const std::string& damage) {
    std::vector<std::string> warnings;
    EXPECT_EQ(newest_valid_checkpoint(folder_.path(), warnings), folder_ / "checkpoint-1")
        << damage;
    EXPECT_THAT(warnings, ElementsAre(HasSubstr(file_.string()))) << damage;
    EXPECT_THAT(error_of([&] { open_checkpoint(folder_ / "checkpoint-2"); }), HasSubstr(GetParam()))
        << damage;
    EXPECT_EQ(mark_of(folder_ / "checkpoint-1"), 0) << damage;
  }

  TemporaryFolder folder_{in_memory()};
  fs::path file_;
  std::string sound_;
};

TEST_P(CheckpointFallback, CutAnywhere) {
  // The state's last byte is a new line, which means nothing.
  const size_t most = sound_.size() - (file_.filename() == "trainer_state.json");
  for (size_t size = 0; size < most; ++size) {
    spill(file_, sound_.substr(0, size));
    expect_fallback(cat("cut to ", size));
  }
}

TEST_P(CheckpointFallback, EachByteChanged) {
  for (size_t i = 0; i < sound_.size(); ++i) {
    if (file_.filename() == "trainer_state.json" && std::isspace(sound_[i])) continue;
    std::string bytes = sound_;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << i % 7));
    if (std::isspace(bytes[i])) bytes[i] = '\1';
    spill(file_, bytes);
    expect_fallback(cat("byte ", i));
  }
}

TEST_P(CheckpointFallback, BytesMoreThanThereWere) {
  for (const std::string& more : {std::string("x"), std::string(1, '\0'), std::string(5000, '{')}) {
    spill(file_, sound_ + more);
    expect_fallback(cat(more.size(), " bytes more"));
  }
}

TEST_P(CheckpointFallback, SomethingElseInItsPlace) {
  fs::remove(file_);
  expect_fallback("missing");
  fs::create_directory(file_);
  expect_fallback("a folder");
  fs::remove(file_);
  fs::create_symlink(folder_ / "nothing", file_);
  expect_fallback("a link to nothing");
  fs::remove(file_);
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  expect_fallback("a pipe");
  fs::remove(file_);
  fs::create_symlink(file_, file_);
  expect_fallback("a link to itself");
  fs::remove(file_);
  fs::copy_file(folder_ / "checkpoint-1" / GetParam(), file_);
  if (file_.filename() != "config.json") {  // which is the same
    std::vector<std::string> warnings;
    EXPECT_EQ(newest_valid_checkpoint(folder_.path(), warnings), folder_ / "checkpoint-1");
    EXPECT_EQ(warnings.size(), 1u);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, CheckpointFallback,
                         ::testing::Values("model.safetensors", "optimizer.safetensors",
                                           "config.json", "trainer_state.json", "policy.txt"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(CheckpointFallbackFolder, ThatCannotBeListedIsNoEmptyOne) {
  const TemporaryFolder folder;
  spill(folder / "file", "");
  EXPECT_THAT(error_of([&] { list_checkpoints(folder / "file"); }), HasSubstr("cannot list"));
}

TEST(CheckpointFallbackFolder, TheOneJustSavedStays) {
  const TemporaryFolder folder;
  for (int64_t step : {10, 20, 5}) {  // a run that goes on from an earlier checkpoint
    const fs::path path = save_checkpoint(folder.path(), step, content_of(step));
    rotate_checkpoints(folder.path(), 1, path);
    EXPECT_TRUE(fs::exists(path)) << step;
  }
  EXPECT_THAT(sound_steps(folder.path()), ElementsAre(5, 20));
}

}  // namespace
}  // namespace compact
