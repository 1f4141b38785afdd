// SPDX-License-Identifier: Apache-2.0
// The values in the table of options, compared with tables of layers above it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "compact/base/named.h"
#include "compact/base/scores.h"
#include "compact/base/text.h"
#include "compact/config/option.h"
#include "compact/data/text/glue.h"
#include "compact/data/tokenizers/tokenizer.h"
#include "compact/plan/search.h"
#include "compact/tasks/task.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::StartsWith;

const ConfigOption& option(const std::string& name) {
  return named(config_options(), name, "no option");
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

TEST(OptionTables, TasksAreThoseThereAre) {
  const std::vector<std::string> tasks_there_are = names_of(tasks());
  for (const ConfigOption& o : config_options()) {
    for (const std::string& task : o.tasks) EXPECT_THAT(tasks_there_are, Contains(task)) << o.name;
    EXPECT_LT(o.tasks.size(), tasks_there_are.size()) << o.name << ": an empty list says all";
  }
  EXPECT_THAT(tasks_there_are, Contains(TrainConfig().task));
}

TEST(OptionTables, GlueHasTheTasksThatItsOptionNames) {
  EXPECT_EQ(values_of(option("task_name")), joined(names_of(glue_tasks()), ", "));
}

TEST(OptionTables, TokenizersAreThoseThereAre) {
  std::vector<std::string> of_files = names_of(tokenizers());
  ASSERT_EQ(of_files.front(), "bytes");
  of_files.erase(of_files.begin());
  EXPECT_EQ(values_of(option("tokenizer")),
            "DIR, bytes, {" + joined(of_files, ",") + "}:file=PATH");
}

TEST(OptionTables, AllowNamesWhatAPlanMayGiveUp) {
  const std::vector<std::string> known = {"lossless", "quantize", "project", "offload", "disk"};
  EXPECT_THAT(values_of(option("allow")), StartsWith(joined(known, ", ") + " or "));
  EXPECT_THAT(error_of([] { Allowed::parse("0123456789"); }),
              EndsWith("known: " + joined(known, " ")));
}

TEST(OptionTables, MetricsAreScores) {
  for (const std::string& word : split(values_of(option("metric_for_best_model")), ',')) {
    const std::string name(trim(word));
    if (name == "loss" || name == "...") continue;
    EXPECT_NO_THROW(named_score(name, {}, {})) << name;
  }
}

}  // namespace
}  // namespace compact
