// SPDX-License-Identifier: Apache-2.0
// The files in an archive, one after the other: tar, as it is or compressed by gzip, bzip2, xz,
// lzma, zstd or lz4 (found by the content), and zip. Nothing is written to disk and no program is
// started. Memory is that of libarchive and of the member being read.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

struct archive;

namespace compact {

class ArchiveReader {
 public:
  // Throws InputError where `path` is not a regular file or not such an archive.
  ArchiveReader(const std::string& path, int64_t most_members);

  // Goes to the next regular file; false after the last. Folders are passed over. Throws InputError
  // on a corrupt or cut archive; on links, devices and encrypted members; on names that are
  // absolute, have a part `..`, control characters or more than 512 bytes, or come twice; on more
  // than `most_members`, folders included; on what follows the archive's end, but for zeros after
  // compressed data and a zip archive's own comment.
  bool next();

  // The name of the member, without "./" parts: "train/cat/0001.jpg".
  const std::string& name() const { return name_; }
  // "PATH: member NAME", to begin a message.
  std::string where() const;

  // All bytes of the member; OddOne where there are more than `most`.
  std::string read(int64_t most);

 private:
  struct Close {
    void operator()(archive* a) const;
  };
  [[noreturn]] void broken(const std::string& where) const;
  bool is_format(int format) const;
  void check_end() const;
  void check_rest() const;
  void check_zip_end() const;

  std::string path_, name_;
  std::unique_ptr<archive, Close> archive_;
  int64_t most_members_, members_ = 0;
  std::set<std::array<uint64_t, 2>> seen_;  // digests of the names
};

}  // namespace compact
