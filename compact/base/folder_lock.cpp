// SPDX-License-Identifier: Apache-2.0
#include "compact/base/folder_lock.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <string>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace fs = std::filesystem;
namespace {

// "process 4242 on node7, since 2026-01-31 12:00:00 UTC".
std::string this_process() {
  char host[HOST_NAME_MAX + 1] = {}, time[64] = {};
  ::gethostname(host, HOST_NAME_MAX);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S UTC", ::gmtime_r(&now, &utc));
  return cat("process ", ::getpid(), " on ", host, ", since ", time);
}

// The line that the holder wrote, or "another process" where it is not a line of text.
std::string holder_in(int fd) {
  char text[HOST_NAME_MAX + 128];
  const ssize_t bytes = ::pread(fd, text, sizeof text, 0);
  const std::string line(text, static_cast<size_t>(std::max<ssize_t>(0, bytes)));
  const bool sound = line.ends_with('\n') && std::all_of(line.begin(), line.end() - 1, [](char c) {
                       return c >= ' ' && c <= '~';
                     });
  return sound ? line.substr(0, line.size() - 1) : "another process";
}

// Whether the name still leads to the open file, since a holder removes it when it ends.
bool is_named(int fd, const fs::path& file) {
  struct stat open {};
  struct stat named {};
  return ::fstat(fd, &open) == 0 && ::stat(file.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder) : file_(folder / kLockName) {
  for (fs::path p = folder; !p.empty() && !is_folder(p); p = p.parent_path()) made_.push_back(p);
  make_folders(folder);
  do {
    fd_ = FileDescriptor(::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (fd_.get() < 0) fail_with_errno(file_, "cannot open");
    int status = 0;
    while ((status = ::flock(fd_.get(), LOCK_EX | LOCK_NB)) != 0 && errno == EINTR) continue;
    COMPACT_CHECK(status == 0 || errno != EWOULDBLOCK, folder.string(), ": ", holder_in(fd_.get()),
                  ", writes here: wait for its end, or give another folder");
    held_ = status == 0;
  } while (held_ && !is_named(fd_.get(), file_));
  // Not checked: on a full disk the line is missing, but the lock holds.
  const std::string line = this_process() + "\n";
  [[maybe_unused]] const bool written =
      ::ftruncate(fd_.get(), 0) == 0 &&
      ::pwrite(fd_.get(), line.data(), line.size(), 0) == std::ssize(line);
}

FolderLock::~FolderLock() {
  // If the folder was removed and made again meanwhile, the file is another process's and stays.
  if (held_ && is_named(fd_.get(), file_)) ::unlink(file_.c_str());
  for (const fs::path& folder : made_) ::rmdir(folder.c_str());
}

}  // namespace compact
