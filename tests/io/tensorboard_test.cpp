// SPDX-License-Identifier: Apache-2.0
#include "compact/io/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "compact/io/crc32c.h"
#include "tests/full_disk.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class T>
T take(std::string_view& bytes) {
  T value;
  if (bytes.size() < sizeof value) throw std::runtime_error("cut");
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const uint8_t byte = take<uint8_t>(bytes);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

std::string_view take_text(std::string_view& bytes) {
  const uint64_t size = take_varint(bytes);
  if (bytes.size() < size) throw std::runtime_error("cut");
  const std::string_view text = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return text;
}

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  std::vector<std::pair<std::string, float>> values;
};

std::pair<std::string, float> parse_value(std::string_view bytes) {
  std::pair<std::string, float> value;
  while (!bytes.empty()) {
    switch (take<uint8_t>(bytes)) {
      case 0x0a:
        value.first = take_text(bytes);
        break;
      case 0x15:
        value.second = take<float>(bytes);
        break;
      default:
        throw std::runtime_error("unknown field of a value");
    }
  }
  return value;
}

Event parse_event(std::string_view bytes) {
  Event event;
  while (!bytes.empty()) {
    switch (take<uint8_t>(bytes)) {
      case 0x09:
        event.wall_time = take<double>(bytes);
        break;
      case 0x10:
        event.step = static_cast<int64_t>(take_varint(bytes));
        break;
      case 0x1a:
        event.file_version = take_text(bytes);
        break;
      case 0x2a: {
        std::string_view summary = take_text(bytes);
        while (!summary.empty()) {
          if (take<uint8_t>(summary) != 0x0a) throw std::runtime_error("unknown field");
          event.values.push_back(parse_value(take_text(summary)));
        }
        break;
      }
      default:
        throw std::runtime_error("unknown field of an event");
    }
  }
  return event;
}

// Reads a file of records back, every CRC checked.
std::vector<Event> parse_file(const std::filesystem::path& path) {
  const std::string content = slurp(path);
  std::string_view bytes = content;
  std::vector<Event> events;
  while (!bytes.empty()) {
    const std::string_view length_bytes = bytes.substr(0, 8);
    const uint64_t length = take<uint64_t>(bytes);
    EXPECT_EQ(take<uint32_t>(bytes), mask_crc(crc32c(length_bytes)));
    const std::string_view data = bytes.substr(0, length);
    bytes.remove_prefix(length);
    EXPECT_EQ(take<uint32_t>(bytes), mask_crc(crc32c(data)));
    events.push_back(parse_event(data));
  }
  return events;
}

TEST(TensorBoard, EventsReadBack) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder / "logs/run", 100.5);
  EXPECT_THAT(writer.path().filename().string(), HasSubstr("tfevents"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  writer.write(0, {}, 101.0);
  const std::pair<std::string, float> two[] = {{"train/loss", 2.5f}, {std::string(300, 'n'), nan}};
  writer.write(127, two, 102.0);
  // Everything is in the file while the writer is open.
  ASSERT_EQ(parse_file(writer.path()).size(), 3u);
  const std::pair<std::string, float> one[] = {{"é", -0.0f}};
  writer.write(int64_t{1} << 40, one);
  writer.write(-1, one, 103.0);
  writer.write(128, one, 104.0);
  const auto events = parse_file(writer.path());
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[0].wall_time, 100.5);
  EXPECT_TRUE(events[1].values.empty());
  EXPECT_EQ(events[2].step, 127);
  EXPECT_EQ(events[2].wall_time, 102.0);
  EXPECT_EQ(events[2].values[0], two[0]);
  EXPECT_EQ(events[2].values[1].first, two[1].first);
  EXPECT_TRUE(std::isnan(events[2].values[1].second));
  EXPECT_EQ(events[3].step, int64_t{1} << 40);
  EXPECT_GT(events[3].wall_time, 1.7e9);
  EXPECT_EQ(events[4].step, -1);
  EXPECT_EQ(events[5].step, 128);
}

TEST(TensorBoard, TwoWritersOfOneFolderHaveTheirOwnFiles) {
  const TemporaryFolder folder;
  const TensorBoardWriter a(folder.path()), b(folder.path());
  EXPECT_NE(a.path(), b.path());
}

TEST(TensorBoard, FullDiskKeepsWholeRecords) {
  const TemporaryFolder folder;
  const std::string error = error_on_full_disk(1000, [&] {
    TensorBoardWriter writer(folder.path());
    const std::pair<std::string, float> value[] = {{"loss", 1.0f}};
    for (int64_t step = 0; step < 1000; ++step) writer.write(step, value);
  });
  EXPECT_THAT(error, AllOf(HasSubstr("tfevents"), HasSubstr("cannot write")));
  ASSERT_EQ(folder.names().size(), 1u);
  const auto events = parse_file(folder / folder.names()[0]);
  EXPECT_GT(events.size(), 10u);
  EXPECT_EQ(events.back().step, static_cast<int64_t>(events.size()) - 2);
}

TEST(TensorBoard, FolderThatCannotBe) {
  const TemporaryFolder folder;
  spill(folder / "f", "");
  EXPECT_THAT(error_of([&] { TensorBoardWriter writer(folder / "f"); }),
              AllOf(HasSubstr((folder / "f").string()), HasSubstr("cannot create")));
}

}  // namespace
}  // namespace compact
