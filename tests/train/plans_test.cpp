// SPDX-License-Identifier: Apache-2.0
// Plans in the words of a configuration: what is chosen, offered and found to fit.
#include "compact/train/plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/tasks/setup.h"
#include "tests/temporary_folder.h"
#include "tests/train/task_runs.h"
#include "tests/train/text_runs.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

Task opened(TrainConfig& c) {
  c = for_task(c);
  std::vector<std::string> warnings;
  return task_named(c.task).open(c, {}, warnings);
}

// Batch norms of such maps refuse a batch of one image.
TrainConfig images_of_one_pixel_at_last(const fs::path& folder) {
  TrainConfig c = images(folder, "run");
  c.image_size = 4;
  c.cache_dir = (folder / "cache").string();
  return c;
}

TEST(Plans, ChooseForMapsOfOnePixel) {
  const TemporaryFolder folder;
  TrainConfig c = images_of_one_pixel_at_last(folder.path());
  c.preset = "auto";
  c.budget = "1GiB";
  const Task task = opened(c);
  const Plans plans(c, task, c10::kCPU);
  const Chosen chosen = plans.choose();
  EXPECT_TRUE(chosen.lossless);
  EXPECT_GT(chosen.seconds, 0);
  EXPECT_EQ(chosen.plan.reserved, plans.plan(chosen.policy).reserved);
}

TEST(Plans, LargestBatchWhereOneSampleIsRefused) {
  const TemporaryFolder folder;
  TrainConfig c = images_of_one_pixel_at_last(folder.path());
  const Policy exact = Policy::preset("exact");
  const Task task = opened(c);
  const auto peak = [&](int64_t batch) {
    TrainConfig other = c;
    other.per_device_train_batch_size = batch;
    return Plans(other, task, c10::kCPU).plan(exact).reserved;
  };
  EXPECT_THROW(peak(1), InputError);
  c.budget = std::to_string(peak(5)) + "B";
  const int64_t batch = Plans(c, task, c10::kCPU).largest_batch(exact).batch;
  EXPECT_GE(batch, 5);
  EXPECT_LE(peak(batch), peak(5));
  EXPECT_GT(peak(batch + 1), peak(5));
  c.budget = "1KiB";
  EXPECT_THAT(error_of<BudgetError>([&] { Plans(c, task, c10::kCPU).largest_batch(exact); }),
              HasSubstr("not even a batch of 2 images fits"));
}

// A language model, to be planned without data.
TrainConfig planned_model(const fs::path& folder) {
  TrainConfig c;
  c.model = "llama-60m";
  c.device = "cpu";
  c.cache_dir = (folder / "cache").string();
  return without_data(c);
}

// A preset that fits is offered beside the search; one that is no use is not.
TEST(Plans, OfferPresetsBesideTheSearch) {
  const TemporaryFolder folder;
  TrainConfig c = planned_model(folder.path());
  c.block_size = 16384;
  c.per_device_train_batch_size = 1;
  c.preset = "exact";
  const Task task = opened(c);
  const Plans plans(c, task, c10::kCPU);
  const auto bytes = [&](const char* preset) {
    return plans.plan(Policy::preset(preset)).reserved;
  };
  ASSERT_LT(bytes("tiled"), bytes("recompute"));
  const Policy exact = Policy::preset("exact");
  const std::string both = plans.settings_that_fit(exact, bytes("tiled"));
  EXPECT_THAT(both,
              HasSubstr(cat("--preset auto --budget ", bytes("tiled"), "B; --preset tiled (")));
  EXPECT_THAT(plans.settings_that_fit(exact, bytes("recompute")),
              HasSubstr("; --preset recompute ("));
}

// A budget under which no single setting fits.
TEST(Plans, OfferSettingsTogetherWhereNoneIsEnough) {
  const TemporaryFolder folder;
  TrainConfig c = planned_model(folder.path());
  c.block_size = 2048;
  c.per_device_train_batch_size = 4;
  c.preset = "auto";
  const Task task = opened(c);
  TrainConfig less = c;
  less.per_device_train_batch_size = 1;
  less.block_size = 64;
  less.dtype = "bfloat16";
  less.allow = "quantize,disk";
  const Plans least(less, task, c10::kCPU);
  const int64_t fits = least.search(least.speed())->least_peak();
  const std::string other =
      Plans(c, task, c10::kCPU).settings_that_fit(Policy::preset("off"), fits);
  EXPECT_THAT(other, HasSubstr(" --dtype bfloat16 --per_device_train_batch_size 1 --block_size "));
}

// Blocks longer than any sample change nothing: the halves of these below do.
TEST(Plans, OfferBlocksThatAreShorterThanTheSamples) {
  const TemporaryFolder folder;
  TrainConfig c = prompts(folder.path(), "run");
  add_long_prompt(c, 200);
  c.block_size = 1024;
  c.per_device_train_batch_size = 1;
  c.preset = "auto";
  const Task task = opened(c);
  const Policy exact = Policy::preset("exact");
  TrainConfig shorter = c;
  shorter.block_size = 64;
  const int64_t fits = Plans(shorter, task, c10::kCPU).plan(exact).reserved;
  EXPECT_THAT(Plans(c, task, c10::kCPU).settings_that_fit(exact, fits),
              HasSubstr("--block_size 64 ("));
}

}  // namespace
}  // namespace compact
