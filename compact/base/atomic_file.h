// SPDX-License-Identifier: Apache-2.0
// Files and folders that appear whole or not at all: written beside their place under a temporary
// name, synced to the disk, renamed, and the folder that holds them synced. A failure (disk full,
// no permission, an exception of the caller) throws InputError or passes the exception on, removes
// what was written, and leaves the place as it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "compact/base/file.h"
#include "compact/base/function_ref.h"

namespace compact {

// Prefix of the temporary names of files and folders that are being written.
inline constexpr std::string_view kTemporaryPrefix = ".compact-tmp-";
// Prefix of the name of a folder that is moved aside while another takes its place.
inline constexpr std::string_view kAsidePrefix = ".compact-old-";

// A name that nothing in any folder has: the prefix, then of this host, process and call.
std::string temporary_name();
// Opens a new file in `folder` for reading and writing. It has no name, and is deleted when the
// descriptor is closed. Throws InputError.
FileDescriptor unnamed_file(const std::filesystem::path& folder);

// One file written in pieces. Replaces what is at `path` on commit(); without commit() nothing
// remains. The folder of `path` must exist.
class AtomicFileWriter {
 public:
  explicit AtomicFileWriter(const std::filesystem::path& path);
  AtomicFileWriter(const AtomicFileWriter&) = delete;
  AtomicFileWriter& operator=(const AtomicFileWriter&) = delete;
  ~AtomicFileWriter();

  // Appends, through a buffer: pieces may be as small as one likes.
  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Writes at any offset; holes read as zeros. Does not change where write() appends.
  void write_at(int64_t offset, const void* data, size_t bytes);
  // Syncs and renames. Nothing may be written afterwards. If only the last step, syncing the
  // folder, fails, the new file is in place.
  void commit();
  const std::filesystem::path& path() const { return path_; }

 private:
  void flush();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  FileDescriptor fd_;
  int64_t flushed_ = 0;  // bytes in the file that write() appended
  std::string buffer_;   // bytes that follow those
};

// Throws InputError where a file could not be written: to be called before work whose result it is.
inline void check_can_write(const std::filesystem::path& path) {
  const AtomicFileWriter file(path);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content);
// Texts by the names that they have below `folder`, in folders that are made where they are
// missing.
void write_files_atomically(const std::filesystem::path& folder,
                            const std::map<std::string, std::string>& texts);

// Calls fill(folder) with an empty temporary folder beside `path`; what it holds afterwards (files
// and folders, by any writer) becomes `path`. A folder already at `path` is exchanged in one step
// and then removed; where the file system cannot exchange, it is first moved aside.
void write_directory_atomically(const std::filesystem::path& path,
                                FunctionRef<void(const std::filesystem::path&)> fill);

// Makes a folder and those above it where they are missing, each synced into the one above.
void make_folders(const std::filesystem::path& path);

// Moves the folder or file to a temporary name, then removes it, so that an interrupted removal
// leaves nothing under its own name.
void remove_atomically(const std::filesystem::path& path);

// Removes files that killed processes left in `folder` under temporary names, and moves back a
// folder that one moved aside and did not replace. Leftovers of other hosts stay, since their
// processes may be alive, unless `alone`: no other process writes this folder (FolderLock).
void remove_leftovers(const std::filesystem::path& folder, bool alone = false);

}  // namespace compact
