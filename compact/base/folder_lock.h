// SPDX-License-Identifier: Apache-2.0
// One process at a time writes a folder. The lock is the kernel's on an open file, so that it ends
// with its process, however that ends; the file says who holds it.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "compact/base/file.h"

namespace compact {

// The file in the folder, there as long as it is locked, or left by a process that was killed.
inline constexpr std::string_view kLockName = ".compact-lock";

class FolderLock {
 public:
  // Makes the folder, and those above it, where it is missing. Throws InputError, with nothing
  // changed, where another process holds the lock, naming its host, number and start.
  explicit FolderLock(const std::filesystem::path& folder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  // Removes the file, and of the folders made those that are empty.
  ~FolderLock();

  // False where the file system has no locks: nobody is kept out.
  bool held() const { return held_; }

 private:
  std::filesystem::path file_;
  std::vector<std::filesystem::path> made_;  // folders, the innermost first
  FileDescriptor fd_;
  bool held_ = true;
};

}  // namespace compact
