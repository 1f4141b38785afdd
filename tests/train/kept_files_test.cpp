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
  EXPECT_THAT(names_of(kept_files(folder.path(), {}, true, warnings)),
              ElementsAre("generation_config.json", "labels.txt", "modeling_own.py", "own.jinja"));
  EXPECT_THAT(names_of(kept_files(folder.path(), {{"labels.txt", ""}}, true, warnings)),
              ElementsAre("generation_config.json", "modeling_own.py", "own.jinja"));
  EXPECT_THAT(warnings, ElementsAre());
}

TEST(KeptFiles, AreLicencesFoldersAndTheTokenizersOwn) {
  const TemporaryFolder folder;
  for (const char* inside :
       {"additional_chat_templates", "1_Pooling", "2_Dense", "best", "checkpoint-7", ".git"}) {
    fs::create_directory(folder / inside);
  }
  for (const char* name :
       {"LICENSE", "NOTICE.md", "tokenizer.json", "tokenizer.model", "spiece.model",
        "chat_template.json", "additional_chat_templates/tool_use.jinja", "1_Pooling/config.json",
        "1_Pooling/.hidden.json", "2_Dense/config.json", "2_Dense/model.safetensors",
        "best/config.json", "checkpoint-7/config.json", ".git/a.txt", "model.bin", "model.PT",
        "optimizer.pt", "pytorch_model.bin.index.json"}) {
    spill(folder / name, "{}");
  }
  std::vector<std::string> warnings;
  EXPECT_THAT(names_of(kept_files(folder.path(), {{"tokenizer.json", ""}}, true, warnings)),
              ElementsAre("1_Pooling/config.json", "LICENSE", "NOTICE.md",
                          "additional_chat_templates/tool_use.jinja", "chat_template.json",
                          "spiece.model", "tokenizer.model"));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("2_Dense: has weights; not taken along")));
  EXPECT_THAT(names_of(kept_files(folder.path(), {}, false, warnings)),
              ElementsAre("1_Pooling/config.json", "LICENSE", "NOTICE.md"));
  fs::remove_all(folder / "2_Dense");
  for (int i = 0; i < 100; ++i) spill(folder / cat("1_Pooling/", i, ".txt"), "");
  warnings.clear();
  EXPECT_THAT(names_of(kept_files(folder.path(), {}, false, warnings)),
              ElementsAre("LICENSE", "NOTICE.md"));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("1_Pooling: has many files; not taken along")));
}

TEST(KeptFiles, AreSmallAndThere) {
  const TemporaryFolder folder;
  const std::string half(size_t{5} << 20, ' ');
  for (const char* name : {"a.txt", "b.txt"}) spill(folder / name, half);
  spill(folder / "c.json", "{}");
  spill(folder / "pointer.json",
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  std::vector<std::string> warnings;
  EXPECT_THAT(names_of(kept_files(folder.path(), {}, true, warnings)),
              ElementsAre("a.txt", "c.json"));
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
  more.save_steps = 1;
  fs::create_directory(folder / "run/first");
  for (const char* name : {"run/first.json", "run/first/a.json"}) spill(folder / name, "{}");
  ran(more);
  EXPECT_TRUE(fs::exists(folder / "more/first.json"));
  EXPECT_TRUE(fs::exists(folder / "more/first/a.json"));
  EXPECT_TRUE(fs::exists(folder / "more/checkpoint-1/first/a.json"));
  spill(folder / "more/mine.json", "{}");
  fs::remove(folder / "run/first.json");
  fs::remove_all(folder / "run/first");
  ran(more);
  EXPECT_FALSE(fs::exists(folder / "more/first.json"));
  EXPECT_FALSE(fs::exists(folder / "more/first"));
  EXPECT_TRUE(fs::exists(folder / "more/mine.json"));
}

}  // namespace
}  // namespace compact
