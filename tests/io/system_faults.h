// SPDX-License-Identifier: Apache-2.0
// Every system call on files that goes through libc, counted while `plan.armed`; one of them, or
// all from one on, can be made to fail or to be the process's last. The functions stand in place of
// libc's for the whole program, libstdc++ included; without a plan they pass everything on. To be
// included by one source file of a program.
#pragma once

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace compact::faults {

enum class Act { kNothing, kFail, kFailFromThen, kKill, kShortWrite };

struct Plan {
  bool armed = false;
  int64_t at = 0;  // the number of the call that is acted on, from 1
  Act act = Act::kNothing;
  int error = 0;                   // 0: the one that suits the call
  bool no_exchange = false;        // as on a file system that cannot exchange names
  int64_t calls = 0;               // so far
  std::vector<std::string> log{};  // "fsync PATH", ...
};

inline Plan plan;

inline std::string path_of(int fd) {
  char path[4096];
  const ssize_t size =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return size < 0 ? "?" : std::string(path, static_cast<size_t>(size));
}

// Counts a call. Returns the error that it is to give, or 0 where it is to pass.
inline int next(const char* name, const std::string& what, int error) {
  if (!plan.armed) return 0;
  ++plan.calls;
  plan.log.push_back(std::string(name) + " " + what);
  const bool now = plan.calls == plan.at;
  if (now && plan.act == Act::kKill) ::kill(::getpid(), SIGKILL);
  if ((now && plan.act == Act::kFail) ||
      (plan.act == Act::kFailFromThen && plan.calls >= plan.at)) {
    return plan.error ? plan.error : error;
  }
  return 0;
}

template <class F>
F* real(F*, const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace compact::faults

// FAULT_REAL(open) is libc's own; FAULT(open, path, EMFILE, -1) returns -1 where the plan says so.
#define FAULT_REAL(name) ::compact::faults::real(static_cast<decltype(&::name)>(nullptr), #name)
#define FAULT(name, what, error_if, result)                                \
  if (::compact::faults::plan.armed) {                                     \
    const int fault_ = ::compact::faults::next(#name, (what), (error_if)); \
    if (fault_ != 0) {                                                     \
      errno = fault_;                                                      \
      return result;                                                       \
    }                                                                      \
  }

extern "C" {

inline mode_t fault_mode_of(va_list list, int flags) {
  return flags & (O_CREAT | O_TMPFILE) ? static_cast<mode_t>(va_arg(list, int)) : 0;
}

__attribute__((used)) int open(const char* path, int flags, ...) {
  static const auto original = FAULT_REAL(open);
  va_list list;
  va_start(list, flags);
  const mode_t mode = fault_mode_of(list, flags);
  va_end(list);
  FAULT(open, path, flags & O_CREAT ? ENOSPC : EMFILE, -1);
  return original(path, flags, mode);
}

__attribute__((used)) int openat(int folder, const char* path, int flags, ...) {
  static const auto original = FAULT_REAL(openat);
  va_list list;
  va_start(list, flags);
  const mode_t mode = fault_mode_of(list, flags);
  va_end(list);
  FAULT(openat, path, EMFILE, -1);
  return original(folder, path, flags, mode);
}

__attribute__((used)) ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  static const auto original = FAULT_REAL(pwrite);
  using compact::faults::plan;
  const bool halved = plan.armed && plan.act == compact::faults::Act::kShortWrite;
  const bool last =
      plan.armed && plan.act == compact::faults::Act::kKill && plan.calls + 1 == plan.at;
  // A short write, or half of one before the process ends.
  if (last) (void)original(fd, data, bytes / 2, offset);
  FAULT(pwrite, compact::faults::path_of(fd), ENOSPC, -1);
  return original(fd, data, halved ? (bytes + 1) / 2 : bytes, offset);
}

__attribute__((used)) ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  static const auto original = FAULT_REAL(pread);
  FAULT(pread, compact::faults::path_of(fd), EIO, -1);
  return original(fd, data, bytes, offset);
}

__attribute__((used)) int fsync(int fd) {
  static const auto original = FAULT_REAL(fsync);
  FAULT(fsync, compact::faults::path_of(fd), EIO, -1);
  return original(fd);
}

__attribute__((used)) int close(int fd) {
  static const auto original = FAULT_REAL(close);
  const std::string path = compact::faults::plan.armed ? compact::faults::path_of(fd) : "";
  const int status = original(fd);  // as the system: closed, whatever it says
  FAULT(close, path, EIO, -1);
  return status;
}

__attribute__((used)) int rename(const char* from, const char* to) __THROW {
  static const auto original = FAULT_REAL(rename);
  FAULT(rename, std::string(from) + " " + to, EIO, -1);
  return original(from, to);
}

__attribute__((used)) int renameat2(int from_folder, const char* from, int to_folder,
                                    const char* to, unsigned flags) __THROW {
  static const auto original = FAULT_REAL(renameat2);
  FAULT(renameat2, std::string(from) + " " + to, EIO, -1);
  if (compact::faults::plan.armed && compact::faults::plan.no_exchange) {
    errno = EINVAL;
    return -1;
  }
  return original(from_folder, from, to_folder, to, flags);
}

__attribute__((used)) int mkdir(const char* path, mode_t mode) __THROW {
  static const auto original = FAULT_REAL(mkdir);
  FAULT(mkdir, path, ENOSPC, -1);
  return original(path, mode);
}

__attribute__((used)) int unlink(const char* path) __THROW {
  static const auto original = FAULT_REAL(unlink);
  FAULT(unlink, path, EIO, -1);
  return original(path);
}

__attribute__((used)) int unlinkat(int folder, const char* path, int flags) __THROW {
  static const auto original = FAULT_REAL(unlinkat);
  FAULT(unlinkat, path, EIO, -1);
  return original(folder, path, flags);
}

__attribute__((used)) int rmdir(const char* path) __THROW {
  static const auto original = FAULT_REAL(rmdir);
  FAULT(rmdir, path, EIO, -1);
  return original(path);
}

__attribute__((used)) int stat(const char* path, struct stat* to) __THROW {
  static const auto original = FAULT_REAL(stat);
  FAULT(stat, path, EIO, -1);
  return original(path, to);
}

__attribute__((used)) int fstat(int fd, struct stat* to) __THROW {
  static const auto original = FAULT_REAL(fstat);
  FAULT(fstat, compact::faults::path_of(fd), EIO, -1);
  return original(fd, to);
}

__attribute__((used)) DIR* opendir(const char* path) {
  static const auto original = FAULT_REAL(opendir);
  FAULT(opendir, path, EMFILE, nullptr);
  return original(path);
}

__attribute__((used)) DIR* fdopendir(int fd) {
  static const auto original = FAULT_REAL(fdopendir);
  FAULT(fdopendir, compact::faults::path_of(fd), ENOMEM, nullptr);
  return original(fd);
}

__attribute__((used)) dirent* readdir(DIR* folder) {
  static const auto original = FAULT_REAL(readdir);
  FAULT(readdir, compact::faults::path_of(::dirfd(folder)), EIO, nullptr);
  return original(folder);
}

}  // extern "C"
