// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "compact/base/check.h"
#include "compact/plan/search.h"
#include "compact/train/trainer.h"
#include "tests/config/small_config.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

TEST(Train, BadInputLeavesNothingBehind) {
  const TemporaryFolder folder;
  spill(folder / "short.txt", "tiny");
  spill(folder / "long.txt", std::string(5000, 'a'));
  TrainConfig c = valid_config();
  c.cache_dir = (folder / "cache").string();
  c.output_dir = (folder / "out").string();
  std::ostringstream console;
  c.train_file = {(folder / "missing.txt").string()};
  EXPECT_THAT(error_of([&] { train(c, console); }), HasSubstr("missing.txt"));
  c.train_file = {(folder / "short.txt").string()};
  // The file that was given, not what it was made into.
  EXPECT_EQ(error_of([&] { train(c, console); }),
            c.train_file[0] + ": --block_size 256 needs at least 257 tokens, there are 5");
  c.train_file = {(folder / "long.txt").string()};
  c.preset = "compact";
  c.rank = 4096;
  EXPECT_THAT(error_of([&] { train(c, console); }), HasSubstr("4096"));
  c.rank = 0;
  c.set = {"slot layers.*.mlp.gateup = recompute"};
  EXPECT_THAT(error_of([&] { train(c, console); }),
              HasSubstr("did you mean `layers.*.mlp.gate_up`"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  c.set = {};
  spill(folder / "out", "a file");
  EXPECT_THAT(error_of([&] { train(c, console); }), HasSubstr("not a folder"));
}

// Neither read, which this text would not stand, nor tokenized, which takes long.
TEST(Train, WhatCannotFitIsRefusedBeforeTheTextIsRead) {
  const TemporaryFolder folder;
  spill(folder / "short.txt", "tiny");
  TrainConfig c = valid_config();
  c.device = "cpu";
  c.cache_dir = (folder / "cache").string();
  c.output_dir = (folder / "out").string();
  c.train_file = {(folder / "short.txt").string()};
  c.budget = "1MiB";
  std::ostringstream console;
  for (const char* preset : {"exact", "gact-l1"}) {
    c.preset = preset;
    EXPECT_THAT(error_of<BudgetError>([&] { train(c, console); }), HasSubstr("of --budget"));
    c.train_file = {(folder / "missing.txt").string()};
    EXPECT_THAT(error_of([&] { train(c, console); }), HasSubstr("missing.txt"));
    c.train_file = {(folder / "short.txt").string()};
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "cache"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(Train, NonFiniteLossStopsBeforeTheUpdate) {
  const TemporaryFolder folder;
  spill(folder / "long.txt", std::string(9000, 'a'));
  TrainConfig c = valid_config();
  c.cache_dir = (folder / "cache").string();
  c.output_dir = (folder / "out").string();
  c.train_file = {(folder / "long.txt").string()};
  c.block_size = 16;
  c.per_device_train_batch_size = 2;
  c.max_steps = 6;
  c.learning_rate = 1e30;
  c.max_grad_norm = 0;
  std::ostringstream console;
  EXPECT_THAT(error_of<std::exception>([&] { train(c, console); }),
              HasSubstr("stopped before the update"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out/model.safetensors"));
}

}  // namespace
}  // namespace compact
