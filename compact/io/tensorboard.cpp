// SPDX-License-Identifier: Apache-2.0
#include "compact/io/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "compact/base/check.h"
#include "compact/io/crc32c.h"

namespace compact {
namespace fs = std::filesystem;
namespace {

// Protobuf keys: field number * 8 + wire type (0 varint, 1 eight bytes, 2 length, 5 four bytes).
constexpr char kEventWallTime = 1 << 3 | 1;
constexpr char kEventStep = 2 << 3 | 0;
constexpr char kEventFileVersion = 3 << 3 | 2;
constexpr char kEventSummary = 5 << 3 | 2;
constexpr char kSummaryValue = 1 << 3 | 2;
constexpr char kValueTag = 1 << 3 | 2;
constexpr char kValueSimple = 2 << 3 | 5;

template <class T>
void append_bytes(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
  to += static_cast<char>(value);
}

void append_text(std::string& to, char key, const std::string& text) {
  to += key;
  append_varint(to, text.size());
  to += text;
}

std::string begin_event(std::optional<double> wall_time) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event(1, kEventWallTime);
  append_bytes(event, wall_time.value_or(now.count()));
  return event;
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const fs::path& folder, std::optional<double> wall_time) {
  std::error_code error;
  fs::create_directories(folder, error);
  COMPACT_CHECK(is_folder(folder), folder.string(), ": cannot create the folder (", error.message(),
                ")");
  // TensorBoard reads the files of a folder in the order of their names.
  const int64_t second = std::chrono::duration_cast<std::chrono::seconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
  FileDescriptor fd;
  for (int number = 0; fd.get() < 0; ++number) {
    path_ = folder /
            cat("events.out.tfevents.", second, ".", host_name(), ".", ::getpid(), ".", number);
    fd = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd.get() < 0 && errno != EEXIST) fail_with_errno(path_, "cannot create");
  }
  file_ = AppendedFile(std::move(fd), path_);
  std::string event = begin_event(wall_time);
  append_text(event, kEventFileVersion, "brain.Event:2");
  write_record(event);
}

void TensorBoardWriter::write(int64_t step, std::span<const std::pair<std::string, float>> values,
                              std::optional<double> wall_time) {
  std::string event = begin_event(wall_time);
  event += kEventStep;
  append_varint(event, static_cast<uint64_t>(step));
  std::string summary;
  for (const auto& [tag, value] : values) {
    std::string message;
    append_text(message, kValueTag, tag);
    message += kValueSimple;
    append_bytes(message, value);
    append_text(summary, kSummaryValue, message);
  }
  append_text(event, kEventSummary, summary);
  write_record(event);
}

void TensorBoardWriter::write_record(const std::string& event) {
  std::string record;
  append_bytes(record, uint64_t{event.size()});
  append_bytes(record, mask_crc(crc32c(record)));
  record += event;
  append_bytes(record, mask_crc(crc32c(event)));
  file_.append(record);
}

}  // namespace compact
