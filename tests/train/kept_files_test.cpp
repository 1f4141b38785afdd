// SPDX-License-Identifier: Apache-2.0
#include "compact/train/kept_files.h"

#include <gmock/gmock.h>

#include "tests/train/text_runs.h"

namespace compact {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names_of(const std::map<std::string, std::string>& files) {
  std::vector<std::string> names;
  for (const auto& [name, text] : files) names.push_back(name);
  return names;
}

TEST(KeptFiles, AreSettingsAndCodeThatHoldForWhatIsTrained) {
  const TemporaryFolder folder;
  for (const char* name :
       {"generation_config.json", "modeling_own.py", "labels.txt", "own.jinja",
        "adapter_config.json", "adapter_model.json", "quantize_config.json", "config.json",
        "rows.parquet", "notes.dat", "README.md", "bad\xFF.json"}) {
    spill(folder / name, "{}");
  }
  std::vector<std::string> warnings;
  EXPECT_THAT(names_of(kept_files(folder.path(), warnings)),
              ElementsAre("generation_config.json", "labels.txt", "modeling_own.py", "own.jinja"));
  EXPECT_THAT(warnings, ElementsAre());
}

TEST(KeptFiles, AreSmallAndThere) {
  const TemporaryFolder folder;
  const std::string half(size_t{5} << 20, ' ');
  for (const char* name : {"a.txt", "b.txt"}) spill(folder / name, half);
  spill(folder / "c.json", "{}");
  spill(folder / "pointer.json",
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  std::vector<std::string> warnings;
  EXPECT_THAT(names_of(kept_files(folder.path(), warnings)), ElementsAre("a.txt", "c.json"));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("b.txt"), HasSubstr("is a pointer of Git LFS")));
}

// One that JSON cannot name must not end a run at its first checkpoint.
TEST(KeptFiles, OfAnyNameLeaveCheckpointsWhole) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  c.max_steps = 1;
  ran(c);
  spill(folder / "run/bad\xFF.json", "{}");
  TrainConfig more = sentences(folder.path(), "more");
  more.model.clear();
  more.model_name_or_path = c.output_dir;
  more.max_steps = more.save_steps = 1;
  ran(more);
  EXPECT_TRUE(fs::exists(folder / "more/checkpoint-1"));
}

TEST(KeptFiles, OfAnEarlierModelDoNotSurviveIt) {
  const TemporaryFolder folder;
  TrainConfig c = sentences(folder.path(), "run");
  c.max_steps = 1;
  ran(c);
  TrainConfig more = sentences(folder.path(), "more");
  more.model.clear();
  more.model_name_or_path = c.output_dir;
  more.max_steps = 1;
  more.overwrite_output_dir = true;
  spill(folder / "run/first.json", "{}");
  ran(more);
  EXPECT_TRUE(fs::exists(folder / "more/first.json"));
  spill(folder / "more/mine.json", "{}");
  fs::remove(folder / "run/first.json");
  ran(more);
  EXPECT_FALSE(fs::exists(folder / "more/first.json"));
  EXPECT_TRUE(fs::exists(folder / "more/mine.json"));
}

}  // namespace
}  // namespace compact
