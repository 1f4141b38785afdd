// SPDX-License-Identifier: Apache-2.0
#include "compact/base/atomic_file.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <system_error>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/base/text.h"

namespace compact {
namespace fs = std::filesystem;
namespace {

constexpr size_t kBuffer = size_t{1} << 18;

// Distinguishes this process from an earlier one with the same process id.
const std::string& process_token() {
  static const std::string token =
      std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
  return token;
}

// Identifies the host and the namespace of process ids, since a container numbers its own.
const std::string& host_token() {
  static const std::string token = [] {
    char text[HOST_NAME_MAX + 64] = {};
    ::gethostname(text, HOST_NAME_MAX);
    const size_t used = std::strlen(text);
    const ssize_t link = ::readlink("/proc/self/ns/pid", text + used, sizeof text - used);
    return std::to_string(label_of(text, used + static_cast<size_t>(std::max<ssize_t>(0, link))));
  }();
  return token;
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// `path` without separators at its end, so that it has a last component.
fs::path without_slash(const fs::path& path) {
  const fs::path result = path.has_filename() ? path : path.parent_path();
  COMPACT_CHECK(result.has_filename() && result.filename() != "." && result.filename() != "..", "`",
                path.string(), "`: must name a file or folder to write");
  return result;
}

int fsync_whole(int fd) {
  int status = 0;
  while ((status = ::fsync(fd)) != 0 && errno == EINTR) continue;
  return status;
}

void sync(const fs::path& path, int flags) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (fd.get() < 0) fail_with_errno(path, "cannot open to sync");
  // Some file systems cannot sync a folder and answer EINVAL, which is ignored.
  if (fsync_whole(fd.get()) != 0 && !((flags & O_DIRECTORY) && errno == EINVAL)) {
    fail_with_errno(path, "cannot sync to disk");
  }
}

void sync_folder(const fs::path& folder) { sync(folder, O_DIRECTORY); }

void sync_tree(const fs::path& folder) {
  try {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_symlink()) continue;
      if (entry.is_directory()) sync_folder(entry.path());
      if (entry.is_regular_file()) sync(entry.path(), 0);
    }
  } catch (const fs::filesystem_error& error) {
    fail(folder.string(), ": cannot list to sync (", error.code().message(), ")");
  }
  sync_folder(folder);
}

bool renamed(const fs::path& from, const fs::path& to) {
  return ::rename(from.c_str(), to.c_str()) == 0;
}

void rename_to(const fs::path& from, const fs::path& to) {
  if (!renamed(from, to)) fail_with_errno(to, "cannot rename into place");
}

// Calls action(); if it throws, calls undo() and rethrows.
void or_undo(FunctionRef<void()> action, FunctionRef<void()> undo) {
  try {
    action();
  } catch (...) {
    undo();
    throw;
  }
}

// Swaps two names in one step; false where the file system cannot.
bool exchange(const fs::path& a, const fs::path& b) {
#ifdef RENAME_EXCHANGE
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) {
    fail_with_errno(b, "cannot exchange with the new one");
  }
#endif
  return false;
}

void remove_quietly(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// Removes the folder on leaving the scope.
struct TemporaryFolder {
  fs::path path;
  ~TemporaryFolder() { remove_quietly(path); }
};

// For file systems that cannot exchange names: moves `old` aside, then `made` into its place. If
// the process is killed in between, remove_leftovers() moves `old` back.
void replace_by_steps(const fs::path& made, const fs::path& old) {
  const std::string number = temporary_name().substr(kTemporaryPrefix.size());
  const fs::path aside = folder_of(old) / cat(kAsidePrefix, number, "-", old.filename().string());
  rename_to(old, aside);
  or_undo([&] { rename_to(made, old); }, [&] { renamed(aside, old); });
  or_undo([&] { sync_folder(folder_of(old)); }, [&] { renamed(old, made) && renamed(aside, old); });
  remove_quietly(aside);
}

}  // namespace

std::string temporary_name() {
  static std::atomic<int64_t> number{0};
  return cat(kTemporaryPrefix, host_token(), "-", ::getpid(), "-", process_token(), "-", number++);
}

FileDescriptor unnamed_file(const fs::path& folder) {
  FileDescriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.get() >= 0) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR) fail_with_errno(folder, "no file can be made there");
  // Some file systems have only files with names, of which this one loses its own at once.
  const fs::path path = folder / temporary_name();
  file = FileDescriptor(::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (file.get() < 0) fail_with_errno(folder, "no file can be made there");
  ::unlink(path.c_str());
  return file;
}

AtomicFileWriter::AtomicFileWriter(const fs::path& path) : path_(without_slash(path)) {
  // rename() would refuse only after everything was written.
  COMPACT_CHECK(!is_folder(path_), path_.string(), ": cannot write a file, is a folder");
  COMPACT_CHECK(path_.filename().native().size() <= NAME_MAX, path_.string(),
                ": cannot create (File name too long)");
  std::error_code ignored;
  COMPACT_CHECK(!fs::exists(path_, ignored) || is_file(path_), path_.string(),
                ": cannot write, is not a regular file");
  do {
    temporary_ = folder_of(path_) / temporary_name();
    fd_ = FileDescriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  } while (fd_.get() < 0 && errno == EEXIST);
  if (fd_.get() < 0) fail_with_errno(path_, "cannot create");
}

AtomicFileWriter::~AtomicFileWriter() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFileWriter::flush() {
  compact::write_at(fd_.get(), path_, flushed_, buffer_.data(), std::ssize(buffer_));
  flushed_ += std::ssize(buffer_);
  buffer_.clear();
}

void AtomicFileWriter::write(const void* data, size_t bytes) {
  COMPACT_CHECK(fd_.get() >= 0, path_.string(), ": written to after commit");
  if (buffer_.size() + bytes > kBuffer) flush();
  if (bytes <= kBuffer) {
    buffer_.append(static_cast<const char*>(data), bytes);
  } else {
    compact::write_at(fd_.get(), path_, flushed_, data, static_cast<int64_t>(bytes));
    flushed_ += static_cast<int64_t>(bytes);
  }
}

void AtomicFileWriter::write_at(int64_t offset, const void* data, size_t bytes) {
  COMPACT_CHECK(fd_.get() >= 0, path_.string(), ": written to after commit");
  flush();  // the buffer may hold bytes of the same place
  compact::write_at(fd_.get(), path_, offset, data, static_cast<int64_t>(bytes));
}

void AtomicFileWriter::commit() {
  COMPACT_CHECK(fd_.get() >= 0, path_.string(), ": committed twice");
  flush();
  if (fsync_whole(fd_.get()) != 0) fail_with_errno(path_, "cannot sync to disk");
  // Network file systems report a full disk only here. After EINTR it is closed as well.
  if (::close(fd_.release()) != 0 && errno != EINTR) fail_with_errno(path_, "cannot close");
  rename_to(temporary_, path_);
  temporary_.clear();
  sync_folder(folder_of(path_));
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  AtomicFileWriter file(path);
  file.write(content);
  file.commit();
}

void write_files_atomically(const fs::path& folder,
                            const std::map<std::string, std::string>& texts) {
  for (const auto& [name, text] : texts) {
    make_folders((folder / name).parent_path());
    write_file_atomically(folder / name, text);
  }
}

void write_directory_atomically(const fs::path& path, FunctionRef<void(const fs::path&)> fill) {
  const fs::path target = without_slash(path);
  COMPACT_CHECK(!is_file(target), target.string(), ": cannot write a folder, is a file");
  TemporaryFolder temporary{folder_of(target) / temporary_name()};
  if (::mkdir(temporary.path.c_str(), 0777) != 0) fail_with_errno(target, "cannot create");
  fill(temporary.path);
  sync_tree(temporary.path);
  const fs::path& made = temporary.path;
  const auto sync_place = [&] { sync_folder(folder_of(target)); };
  if (!is_folder(target)) {
    rename_to(made, target);
    or_undo(sync_place, [&] { renamed(target, made); });
  } else if (exchange(made, target)) {
    or_undo(sync_place, [&] { exchange(made, target); });
  } else {
    replace_by_steps(made, target);
  }
}

void make_folders(const fs::path& path) {
  if (path.empty() || is_folder(path)) return;
  make_folders(path.parent_path());
  if (::mkdir(path.c_str(), 0777) == 0) {
    sync_folder(folder_of(path));
  } else if (!is_folder(path)) {  // it may exist: by another process, or "a/" after "a"
    fail_with_errno(path, "cannot create the folder");
  }
}

void remove_atomically(const fs::path& path) {
  const fs::path target = without_slash(path);
  const fs::path temporary = folder_of(target) / temporary_name();
  if (::rename(target.c_str(), temporary.c_str()) != 0) fail_with_errno(target, "cannot remove");
  std::error_code error;
  fs::remove_all(temporary, error);
  COMPACT_CHECK(!error, target.string(), ": cannot remove (", error.message(), ")");
}

void remove_leftovers(const fs::path& folder, bool alone) {
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool aside = name.starts_with(kAsidePrefix);
    if (!aside && !name.starts_with(kTemporaryPrefix)) continue;
    // Host, process id, token, number, and, where a folder was moved aside, the name it had.
    std::string_view rest = name;
    rest.remove_prefix(aside ? kAsidePrefix.size() : kTemporaryPrefix.size());
    const auto fields = split(rest, '-');
    const auto pid = fields.size() >= 4 ? parse_integer(fields[1]) : std::nullopt;
    if (!pid || *pid <= 0 || (fields.size() > 4) != aside) continue;
    const bool here = fields[0] == host_token(), own_id = here && *pid == ::getpid();
    const bool alive = !here || ::kill(static_cast<pid_t>(*pid), 0) == 0 || errno == EPERM;
    const bool own = own_id && fields[2] == process_token();
    if (!own_id && alive && !alone) continue;
    if (aside) {  // back if its place is free; own ones where that failed before
      for (int i = 0; i < 4; ++i) rest.remove_prefix(fields[i].size() + 1);
      std::error_code ignored;
      const fs::path place = folder / rest;
      if (!fs::exists(fs::symlink_status(place, ignored)) && renamed(entry->path(), place))
        continue;
    }
    if (!own) remove_quietly(entry->path());
  }
}

}  // namespace compact
