// SPDX-License-Identifier: Apache-2.0
// Files by descriptor: whole reads and writes at offsets, every failure an InputError that names
// the path and the system's reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace compact {

// Throws InputError "PATH: WHAT (reason of errno)".
[[noreturn]] void fail_with_errno(const std::filesystem::path& path, std::string_view what);

// False, without an exception, also where the path cannot be read.
bool is_folder(const std::filesystem::path& path);
bool is_file(const std::filesystem::path& path);

// Owns a descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { reset(); }
  int get() const { return fd_; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

// A regular file opened for reading. Anything else (a folder, a pipe, a device) is refused, as is a
// pointer file of Git LFS. Reads go through pread, so a file that shrinks while it is read is an
// error and not a signal.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return size_; }  // bytes, when it was opened
  // Fills to[0, bytes) from `offset`; InputError where the file ends before.
  void read_at(int64_t offset, void* to, int64_t bytes) const;

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
  int64_t size_ = 0;
};

// Writes all of from[0, bytes) at `offset`, in as many calls as the system needs.
void write_at(int fd, const std::filesystem::path& path, int64_t offset, const void* from,
              int64_t bytes);

// A file that grows by whole records. A record that cannot be written whole (the disk is full) is
// cut off again; if the file was truncated from outside, records continue at its new end.
class AppendedFile {
 public:
  AppendedFile() = default;
  // `fd`: opened for writing. Appends at its end.
  AppendedFile(FileDescriptor fd, std::filesystem::path path);
  // Returns with the record in the file, or throws InputError and leaves the file as it was.
  void append(std::string_view record);

 private:
  int64_t size() const;

  FileDescriptor fd_;
  std::filesystem::path path_;
  int64_t end_ = 0;
};

// The whole content of a file of at most max_bytes.
std::string read_text(const std::filesystem::path& path, int64_t max_bytes);

}  // namespace compact
