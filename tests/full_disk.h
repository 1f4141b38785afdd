// SPDX-License-Identifier: Apache-2.0
// A full disk, by a limit on how far files may grow.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>
#include <string>

#include "tests/temporary_folder.h"

namespace compact {

// Files of this process may not grow past `bytes`, as on a full disk.
class FileLimit {
 public:
  FileLimit() : ignored_(::signal(SIGXFSZ, SIG_IGN)) { ::getrlimit(RLIMIT_FSIZE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  ~FileLimit() {
    set(before_.rlim_cur);
    ::signal(SIGXFSZ, ignored_);
  }
  void set(rlim_t bytes) const {
    const rlimit limit{bytes, before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  void lift() const { set(before_.rlim_cur); }

 private:
  void (*ignored_)(int);
  rlimit before_{};
};

// The error of f() in a child process whose files may not grow past `bytes`, as on a full disk.
template <class F>
std::string error_on_full_disk(rlim_t bytes, F&& f) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    const FileLimit limit;
    limit.set(bytes);
    const std::string text = error_of(f);
    const ssize_t put = ::write(ends[1], text.data(), text.size());
    ::_exit(put == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char block[512];
  for (ssize_t got; (got = ::read(ends[0], block, sizeof block)) > 0;) {
    text.append(block, static_cast<size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return text;
}

}  // namespace compact
