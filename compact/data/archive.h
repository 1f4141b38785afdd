// SPDX-License-Identifier: Apache-2.0
// The files in an archive, one after the other: tar, as it is or compressed by gzip, bzip2, xz,
// lzma, zstd or lz4 (found by the content), and zip. Nothing is written to disk and no program is
// started. Memory is that of libarchive and of the member being read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>

struct archive;

namespace compact {

class ArchiveReader {
 public:
  // Throws InputError where `path` is no regular file or no such archive.
  explicit ArchiveReader(const std::string& path);

  // Goes to the next regular file; false after the last. Folders are passed over. Throws InputError
  // on a corrupt or cut archive; on links, devices and encrypted members; on names that are
  // absolute, have a part `..`, control characters or more than 512 bytes, or come twice.
  bool next();

  // The name of the member, without "./" parts: "train/cat/0001.jpg".
  const std::string& name() const { return name_; }
  // "PATH: member NAME", to begin a message.
  std::string where() const;

  // All bytes of the member; InputError where there are more than `most`.
  std::string read(int64_t most);

 private:
  struct Close {
    void operator()(archive* a) const;
  };
  [[noreturn]] void broken(const std::string& where) const;
  void check_end() const;

  std::string path_, name_;
  std::unique_ptr<archive, Close> archive_;
  std::unordered_set<std::string> seen_;
};

}  // namespace compact
