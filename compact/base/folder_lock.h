// SPDX-License-Identifier: Apache-2.0
// Lets one process at a time write a folder. The lock is the kernel's on an open file, so it ends
// with the process, however that ends; the file names its holder.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "compact/base/file.h"

namespace compact {

// The lock file. It exists while the folder is locked, or was left by a process that was killed.
inline constexpr std::string_view kLockName = ".compact-lock";

class FolderLock {
 public:
  // Makes the folder, and those above it, where it is missing. Throws InputError, with nothing
  // changed, where another process holds the lock, naming its host, number and start.
  explicit FolderLock(const std::filesystem::path& folder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  // Removes the file, and those of the folders it made that are empty.
  ~FolderLock();

  // False where the file system has no locks: other processes are not kept out.
  bool held() const { return held_; }

 private:
  std::filesystem::path file_;
  std::vector<std::filesystem::path> made_;  // folders, the innermost first
  FileDescriptor fd_;
  bool held_ = true;
};

}  // namespace compact
