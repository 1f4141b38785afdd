// SPDX-License-Identifier: Apache-2.0
// Writes scalars as a TensorBoard event file: records (length, masked CRC of the length, bytes,
// masked CRC of the bytes), each a protobuf message `Event`, encoded here by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "compact/base/file.h"

namespace compact {

class TensorBoardWriter {
 public:
  // Makes `folder` where it is missing and a new file events.out.tfevents.* in it. Times are
  // seconds since 1970; without one the clock is read.
  explicit TensorBoardWriter(const std::filesystem::path& folder,
                             std::optional<double> wall_time = std::nullopt);

  // One event with all the values. It is in the file when the call returns; where it does not fit
  // on the disk, InputError, and the file ends with the event before.
  void write(int64_t step, std::span<const std::pair<std::string, float>> values,
             std::optional<double> wall_time = std::nullopt);
  const std::filesystem::path& path() const { return path_; }

 private:
  void write_record(const std::string& event);

  std::filesystem::path path_;
  AppendedFile file_;
};

}  // namespace compact
