// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/glue.h"

#include <gmock/gmock.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "compact/base/scores.h"
#include "tests/data/files.h"

namespace compact {
namespace {

LabelledTexts read(const std::string& task, const TextFolder& folder, const std::string& split) {
  return read_glue(glue_task(task), folder.path(), split);
}

class Glue : public InFolder {};

TEST_F(Glue, TasksAreWhole) {
  const std::vector<double> some = {0, 1, 1};
  for (const GlueTask& task : glue_tasks()) {
    EXPECT_EQ(&glue_task(task.name), &task);
    EXPECT_NE(task.class_names.size(), 1u);
    EXPECT_FALSE(task.metrics.empty());
    for (const std::string& name : task.metrics) EXPECT_NO_THROW(named_score(name, some, some));
  }
  EXPECT_EQ(glue_tasks().size(), 9u);
  EXPECT_THAT(one_line_error_of([] { glue_task("sst-2"); }), HasSubstr("did you mean `sst2`?"));
}

TEST_F(Glue, ColaHasNoHeader) {
  write_file(folder / "train.tsv", "gj04\t1\t\tA \"b\" c.\ngj04\t0\t*\tD e.\r\n");
  const auto train = read("cola", folder, "train");
  EXPECT_THAT(train.first, ElementsAre("A \"b\" c.", "D e."));
  EXPECT_THAT(train.labels, ElementsAre(1, 0));
  EXPECT_THAT(train.class_names, ElementsAre("unacceptable", "acceptable"));
  write_file(folder / "test.tsv", "index\tsentence\n0\tX.\n");
  const auto test = read("cola", folder, "test");
  EXPECT_THAT(test.first, ElementsAre("X."));
  EXPECT_TRUE(std::isnan(test.labels[0]));
  EXPECT_EQ(test.class_names.size(), 2u);
  write_file(folder / "dev.tsv", "gj04\t1\t\tA.\ngj04\t0\tB.\n");
  EXPECT_THAT(one_line_error_of([&] { read("cola", folder, "dev"); }),
              HasSubstr("dev.tsv: line 2 must have 4 columns as the first line, has 3"));
  write_file(folder / "dev.tsv", "gj04\t2\t\tA.\n");
  EXPECT_THAT(one_line_error_of([&] { read("cola", folder, "dev"); }),
              HasSubstr("dev.tsv: line 1: the label must be one of 2 classes"));
}

TEST_F(Glue, PairsByTheirColumns) {
  struct Case {
    const char *task, *file, *text;
    float label;
  };
  const Case cases[] = {
      {"sst2", "SST-2/dev.tsv", "sentence\tlabel\nA\t1\n", 1},
      {"mrpc", "MRPC/dev.tsv",
       "\xEF\xBB\xBFQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tA\tB\n", 0},
      {"qqp", "QQP/dev.tsv",
       "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tA\tB\t1\n", 1},
      {"stsb", "STS-B/dev.tsv",
       "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
       "0\tg\tf\ty\t1\ts\ts\tA\tB\t3.800\n",
       3.8f},
      {"mnli", "MNLI/dev_mismatched.tsv",
       "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA\tB\tentailment\tcontradiction\n", 2},
      {"qnli", "QNLI/dev.tsv", "index\tquestion\tsentence\tlabel\n0\tA\tB\tnot_entailment\n", 1},
      {"rte", "RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n", 0},
      {"wnli", "WNLI/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\t1\n", 1},
  };
  for (const Case& c : cases) {
    std::filesystem::create_directories(std::filesystem::path(folder / c.file).parent_path());
    write_file(folder / c.file, c.text);
    const GlueTask& task = glue_task(c.task);
    const auto texts = read_glue(task, folder.path(), task.validation.back());
    EXPECT_THAT(texts.first, ElementsAre("A")) << c.task;
    EXPECT_THAT(texts.labels, ElementsAre(c.label)) << c.task;
    EXPECT_EQ(texts.second, std::vector<std::string>(task.second.empty() ? 0 : 1, "B")) << c.task;
    EXPECT_THAT(texts.warnings, IsEmpty());
  }
}

// As Hugging Face's reader has it: columns that a row lacks, and an empty label, make it broken;
// columns too many do not.
TEST_F(Glue, BrokenRowsAreSkippedAndCounted) {
  write_file(folder / "train.tsv.xz",
             compressed("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
                        "1\t2\t3\tA\tB\t0\n1\t2\t3\tcut\n1\t2\t3\tA\tB\t\n\n"
                        "1\t2\t3\tC\t\t1\t9\t9\n",
                        ".xz"));
  const auto texts = read("qqp", folder, "train");
  EXPECT_THAT(texts.first, ElementsAre("A", "C"));
  EXPECT_THAT(texts.second, ElementsAre("B", ""));
  EXPECT_THAT(texts.labels, ElementsAre(0, 1));
  EXPECT_THAT(texts.warnings, ElementsAre(HasSubstr("train.tsv.xz: 2 rows were skipped")));
  write_file(folder / "dev.tsv", "id\tquestion1\tquestion2\tis_duplicate\n1\tA\n");
  EXPECT_THAT(one_line_error_of([&] { read("qqp", folder, "dev"); }), HasSubstr("no whole row"));
  write_file(folder / "dev.tsv", "id\tquestion1\tquestion2\tis_duplicate\n1\tA\tB\t-1\n");
  EXPECT_THAT(one_line_error_of([&] { read("qqp", folder, "dev"); }),
              HasSubstr("dev.tsv: line 2: the label must be one of 2 classes"));
}

TEST_F(Glue, OriginalFilesOfParaphrases) {
  const std::string header = "\xEF\xBB\xBFQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n";
  write_file(folder / "msr_paraphrase_train.txt", header + "1\t1\t2\tA\tB\r\n");
  write_file(folder / "msr_paraphrase_test.txt", header + "0\t3\t4\tC\tD\r\n");
  const auto train = read("mrpc", folder, "train"), dev = read("mrpc", folder, "dev");
  EXPECT_THAT(train.second, ElementsAre("B"));
  EXPECT_THAT(train.warnings, IsEmpty());
  EXPECT_THAT(dev.labels, ElementsAre(0));
  EXPECT_THAT(dev.warnings, ElementsAre(HasSubstr("stands in for dev.tsv")));
  write_file(folder / "dev.tsv", header + "1\t5\t6\tE\tF\r\n");
  EXPECT_THAT(read("mrpc", folder, "dev").first, ElementsAre("E"));
}

TEST_F(Glue, RefusesOtherPartsAndFolders) {
  EXPECT_THAT(one_line_error_of([&] { read("mnli", folder, "dev_match"); }),
              HasSubstr("mnli has no part `dev_match`; did you mean `dev_matched`?"));
  EXPECT_THAT(one_line_error_of([&] { read("rte", folder, "../train"); }), HasSubstr("no part"));
  EXPECT_EQ(one_line_error_of([&] { read("rte", folder, "train"); }),
            folder.path() + ": has no train.tsv, nor has " + folder.path() + "/RTE");
  EXPECT_THAT(one_line_error_of([&] { read_glue(glue_task("rte"), folder / "none", "train"); }),
              HasSubstr("must be the folder of GLUE's files"));
  write_file(folder / "train.tsv", "sentence\tlabel\nA\t1\n");
  EXPECT_THAT(one_line_error_of([&] { read("rte", folder, "train"); }),
              HasSubstr("has no column `sentence1`; did you mean `sentence`?"));
}

struct RealFile {
  const char *task, *folder, *split;
  size_t count, ones;
  uint32_t crc32;  // of the sentences, a line feed after each, as Python's csv module reads them
};
void PrintTo(const RealFile& f, std::ostream* out) { *out << f.task << " " << f.split; }

class RealGlue : public testing::TestWithParam<RealFile> {};

TEST_P(RealGlue, IsReadWhole) {
  const RealFile& f = GetParam();
  const std::string root = shared_data("glue");
  if (!std::filesystem::exists(root + "/" + f.folder)) {
    GTEST_SKIP() << "no glue/" << f.folder << " in $COMPACT_DATA";
  }
  const auto texts = read_glue(glue_task(f.task), root, f.split);
  EXPECT_EQ(texts.first.size(), f.count);
  EXPECT_EQ(static_cast<size_t>(std::count(texts.labels.begin(), texts.labels.end(), 1.0f)),
            f.ones);
  uLong crc = 0;
  for (const std::string& text : texts.first) {
    const std::string line = text + "\n";
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(line.data()), static_cast<uInt>(line.size()));
  }
  EXPECT_EQ(crc, f.crc32);
  EXPECT_THAT(texts.warnings, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Files, RealGlue,
    testing::Values(RealFile{"cola", "CoLA", "train", 8551, 6023, 0xe533b6a5u},
                    RealFile{"cola", "CoLA", "dev", 1043, 721, 0x970a6f4cu},
                    RealFile{"cola", "CoLA", "test", 1063, 0, 0x4abcaaaau},
                    RealFile{"sst2", "SST-2", "train", 67349, 37569, 0x99b51a6u},
                    RealFile{"sst2", "SST-2", "dev", 872, 444, 0x25f62138u},
                    RealFile{"sst2", "SST-2", "test", 1821, 0, 0xf71c0e9u}),
    [](const auto& info) { return std::string(info.param.task) + "_" + info.param.split; });

}  // namespace
}  // namespace compact
