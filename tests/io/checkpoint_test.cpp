// SPDX-License-Identifier: Apache-2.0
#include "compact/io/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "compact/base/atomic_file.h"
#include "compact/io/checksum.h"
#include "compact/io/json_file.h"
#include "tests/full_disk.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CheckpointContent content(float value) {
  return {.model = {{"weight", at::full({5, 3}, value)}, {"norm", at::ones({3}, at::kBFloat16)}},
          .optimizer = {{"weight.exp_avg", at::full({5, 3}, value / 3)}, {"step", at::tensor(7)}},
          .config = {{"model_type", "llama"}, {"hidden_size", 3}},
          .trainer_state = {{"global_step", 7}, {"loss", 1.0 / 3}, {"seed", 1234567890123456789u}},
          .texts = {{"policy.txt", "slot * = keep\n"}}};
}

std::vector<int64_t> steps(const fs::path& folder) {
  std::vector<int64_t> result;
  for (const auto& found : list_checkpoints(folder)) result.push_back(found.step);
  return result;
}

TEST(Checkpoint, RoundTrip) {
  const TemporaryFolder folder;
  const fs::path path = save_checkpoint(folder / "out/run", 12, content(0.1f));
  EXPECT_EQ(path, folder / "out/run/checkpoint-12");
  EXPECT_EQ(verify_checkpoint(path), std::nullopt);
  for (bool verified : {false, true}) {
    const OpenCheckpoint open = open_checkpoint(path, verified);
    EXPECT_EQ(open.step, 12);
    EXPECT_TRUE(at::equal(open.model.read("weight"), at::full({5, 3}, 0.1f)));
    EXPECT_EQ(open.model.metadata().at("format"), "pt");
    EXPECT_EQ(open.optimizer.at(0).read("step").item<int64_t>(), 7);
    EXPECT_EQ(open.config, content(0).config);
    EXPECT_EQ(open.trainer_state, content(0).trainer_state);
    EXPECT_EQ(open.texts, content(0).texts);
  }
  EXPECT_THAT(fs::path(path).parent_path(), folder / "out/run");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "out/run"), {}), 1);
}

TEST(Checkpoint, ReplacesOneOfTheSameStep) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), 1, content(1));
  const fs::path path = save_checkpoint(folder.path(), 1, content(2));
  EXPECT_TRUE(at::equal(open_checkpoint(path).model.read("weight"), at::full({5, 3}, 2.0f)));
  EXPECT_THAT(folder.names(), ElementsAre("checkpoint-1"));
}

TEST(Checkpoint, ListsByNumber) {
  const TemporaryFolder folder;
  EXPECT_THAT(list_checkpoints(folder / "none"), IsEmpty());
  for (const char* name : {"checkpoint-10", "checkpoint-9", "checkpoint-0", "checkpoint-007",
                           "checkpoint-", "checkpoint--1", "checkpoint-1x", "checkpoint",
                           "checkpoint-99999999999999999999", "other"}) {
    fs::create_directory(folder / name);
  }
  spill(folder / "checkpoint-5", "a file");
  EXPECT_THAT(steps(folder.path()), ElementsAre(0, 9, 10));
}

// Every byte of every file flipped, every file cut and removed: the checkpoint is refused with the
// file's name, or (a flip in the white space of trainer_state.json) reads the same.
TEST(Checkpoint, DamageIsFound) {
  const TemporaryFolder folder;
  const fs::path path = save_checkpoint(folder.path(), 3, content(1));
  const json state = open_checkpoint(path).trainer_state;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    const std::string sound = slurp(entry.path());
    for (size_t i = 0; i < sound.size(); ++i) {
      std::string bytes = sound;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << i % 8));
      spill(entry.path(), bytes);
      const auto reason = verify_checkpoint(path);
      if (!reason && name == "trainer_state.json") {
        EXPECT_EQ(open_checkpoint(path).trainer_state, state) << i;
      } else {
        EXPECT_THAT(reason.value_or(""), HasSubstr(name)) << i;
      }
    }
    for (size_t size : {size_t{0}, size_t{1}, sound.size() - 2}) {  // the last may be a new line
      spill(entry.path(), sound.substr(0, size));
      EXPECT_THAT(verify_checkpoint(path).value_or(""), HasSubstr(name)) << size;
    }
    spill(entry.path(), sound + " x");
    EXPECT_THAT(verify_checkpoint(path).value_or(""), HasSubstr(name));
    fs::remove(entry.path());
    EXPECT_THAT(verify_checkpoint(path).value_or(""),
                AllOf(HasSubstr(name), HasSubstr("No such file")));
    spill(entry.path(), sound);
    EXPECT_EQ(verify_checkpoint(path), std::nullopt);
  }
}

// A state written by another hand, with a checksum that fits it.
void forge(const fs::path& path, const std::function<void(json&)>& change) {
  json state = read_json(path / "trainer_state.json");
  state["checkpoint"].erase("xxh3");
  change(state["checkpoint"]);
  state["checkpoint"]["xxh3"] = xxh3(state.dump());
  write_json(path / "trainer_state.json", state);
}

TEST(Checkpoint, ForgedManifests) {
  const TemporaryFolder folder;
  const auto reason = [&](const std::function<void(json&)>& change) {
    const fs::path path = save_checkpoint(folder.path(), 3, content(1));
    forge(path, change);
    return verify_checkpoint(path).value_or("");
  };
  EXPECT_EQ(reason([](json&) {}), "");
  EXPECT_THAT(reason([](json& m) { m["version"] = 2; }), HasSubstr("version must be 1, is 2"));
  EXPECT_THAT(reason([](json& m) { m.erase("version"); }), HasSubstr("must have a version"));
  EXPECT_THAT(reason([](json& m) { m["step"] = 4; }), HasSubstr("must have the checkpoint's step"));
  EXPECT_THAT(reason([](json& m) { m["step"] = "3"; }), HasSubstr("must have a step"));
  EXPECT_THAT(reason([](json& m) { m["files"] = 1; }), HasSubstr("must have a step and files"));
  EXPECT_THAT(reason([](json& m) { m["files"].erase("config.json"); }),
              HasSubstr("must list config.json"));
  EXPECT_THAT(reason([](json& m) { m["files"]["../x"] = m["files"]["config.json"]; }),
              HasSubstr("plain names, has `../x`"));
  EXPECT_THAT(reason([](json& m) { m["files"]["config.json"] = 3; }), HasSubstr("config.json"));
  EXPECT_THAT(reason([](json& m) { m["files"]["config.json"]["bytes"] = "x"; }),
              HasSubstr("must have \"x\" bytes"));
}

TEST(Checkpoint, NewestValidFallsBackAndSaysWhy) {
  const TemporaryFolder folder;
  std::vector<std::string> warnings;
  EXPECT_EQ(newest_valid_checkpoint(folder.path(), warnings), std::nullopt);
  for (int64_t step : {9, 10, 11}) save_checkpoint(folder.path(), step, content(1));
  EXPECT_EQ(newest_valid_checkpoint(folder.path(), warnings), folder / "checkpoint-11");
  EXPECT_THAT(warnings, IsEmpty());
  fs::resize_file(folder / "checkpoint-11/model.safetensors", 10);
  std::string bytes = slurp(folder / "checkpoint-10/optimizer.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  spill(folder / "checkpoint-10/optimizer.safetensors", bytes);
  EXPECT_EQ(newest_valid_checkpoint(folder.path(), warnings), folder / "checkpoint-9");
  EXPECT_THAT(warnings,
              ElementsAre(AllOf(HasSubstr("checkpoint-11/model.safetensors"), HasSubstr("has 10")),
                          AllOf(HasSubstr("checkpoint-10/optimizer.safetensors"),
                                HasSubstr("checksum must be"))));
  EXPECT_THAT(error_of([&] { open_checkpoint(folder / "checkpoint-11"); }), HasSubstr("has 10"));
}

TEST(Checkpoint, RotationKeepsTheNewestSoundOne) {
  const TemporaryFolder folder;
  const auto rotate = [&](int64_t limit) {
    return rotate_checkpoints(folder.path(), limit).size();
  };
  for (int64_t step : {8, 9, 10, 11, 12}) save_checkpoint(folder.path(), step, content(1));
  EXPECT_EQ(rotate(0), 0u);
  EXPECT_EQ(rotate(-1), 0u);
  EXPECT_EQ(rotate(5), 0u);
  EXPECT_EQ(rotate(4), 1u);
  EXPECT_THAT(steps(folder.path()), ElementsAre(9, 10, 11, 12));
  for (const char* name : {"checkpoint-12", "checkpoint-11"}) {
    fs::resize_file(folder / name / "model.safetensors", 10);
  }
  EXPECT_EQ(rotate(2), 1u);
  EXPECT_THAT(steps(folder.path()), ElementsAre(10, 11, 12));
  EXPECT_EQ(rotate(1), 1u);
  EXPECT_THAT(steps(folder.path()), ElementsAre(10, 12));
  fs::resize_file(folder / "checkpoint-10/model.safetensors", 10);
  EXPECT_EQ(rotate(1), 0u);
  EXPECT_EQ(folder.names().size(), 2u);
}

TEST(Checkpoint, FullDiskLeavesTheOthers) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), 1, content(1));
  CheckpointContent large = content(1);
  large.optimizer.emplace_back("large", at::zeros({100'000}));
  EXPECT_THAT(error_on_full_disk(100'000, [&] { save_checkpoint(folder.path(), 2, large); }),
              AllOf(HasSubstr("optimizer.safetensors"), HasSubstr("cannot write")));
  EXPECT_THAT(folder.names(), ElementsAre("checkpoint-1"));
  EXPECT_EQ(verify_checkpoint(folder / "checkpoint-1"), std::nullopt);
}

TEST(Checkpoint, BadContentIsRefused) {
  const TemporaryFolder folder;
  const auto save_error = [&](const std::function<void(CheckpointContent&)>& change) {
    CheckpointContent c = content(1);
    change(c);
    return error_of([&] { save_checkpoint(folder.path(), 1, c); });
  };
  EXPECT_THAT(error_of([&] { save_checkpoint(folder.path(), -1, content(1)); }),
              HasSubstr("must not be negative, is -1"));
  EXPECT_THAT(save_error([](auto& c) { c.trainer_state = json::array(); }), HasSubstr("object"));
  EXPECT_THAT(save_error([](auto& c) { c.trainer_state["checkpoint"] = 1; }), HasSubstr("without"));
  EXPECT_THAT(save_error([](auto& c) { c.trainer_state["loss"] = std::nan(""); }),
              HasSubstr("finite"));
  EXPECT_THAT(save_error([](auto& c) { c.trainer_state["text"] = "\xff"; }),
              HasSubstr("cannot be written"));
  EXPECT_THAT(save_error([](auto& c) { c.texts["a/../../b"] = ""; }), HasSubstr("plain name"));
  EXPECT_THAT(save_error([](auto& c) { c.texts["/a"] = ""; }), HasSubstr("plain name"));
  EXPECT_THAT(save_error([](auto& c) { c.texts["config.json"] = ""; }), HasSubstr("plain name"));
  EXPECT_THAT(folder.names(), IsEmpty());
  spill(folder / "f", "");
  EXPECT_THAT(error_of([&] { save_checkpoint(folder / "f", 1, content(1)); }),
              HasSubstr("cannot create the folder"));
}

TEST(Checkpoint, LeftoversOfAKilledSaveGoWithTheNext) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    write_directory_atomically(folder / "checkpoint-1", [](const fs::path& to) {
      spill(to / "model.safetensors", "half");
      ::_exit(0);
    });
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(folder.names().size(), 1u);
  EXPECT_THAT(list_checkpoints(folder.path()), IsEmpty());
  save_checkpoint(folder.path(), 1, content(1));
  EXPECT_THAT(folder.names(), ElementsAre("checkpoint-1"));
}

}  // namespace
}  // namespace compact
