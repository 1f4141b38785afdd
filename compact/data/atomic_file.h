// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all: written under another name in the same folder, flushed
// to the disk, then renamed. Until commit() an older file of that name stays as it is; without
// commit() nothing is left behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace compact {

class AtomicFile {
 public:
  // Throws InputError with the path where the folder is missing or not writable, or `path` is a
  // folder.
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Appends, through a buffer of 256 KiB. Throws InputError where the disk is full.
  void write(const void* data, size_t size);
  // Overwrites bytes written before.
  void write_at(int64_t offset, const void* data, size_t size);
  // Puts the file in its place, durably: contents, then name, then folder.
  void commit();

 private:
  void flush();
  [[noreturn]] void fail_errno(const char* what) const;

  std::string path_, temporary_;
  int file_ = -1;
  std::vector<char> buffer_;
};

}  // namespace compact
