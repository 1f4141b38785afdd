// SPDX-License-Identifier: Apache-2.0
#include "compact/data/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

constexpr size_t kBuffer = size_t{1} << 18;

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

void AtomicFile::fail_errno(const char* what) const {
  fail(path_, ": ", what, ": ", std::strerror(errno));
}

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  COMPACT_CHECK(!path.empty(), "an output path must not be empty");
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    COMPACT_CHECK(S_ISREG(status.st_mode), path, ": cannot be written: must be a regular file");
  }
  // O_EXCL keeps two writers of the same path apart.
  for (int attempt = 0; file_ < 0; ++attempt) {
    temporary_ = cat(path, ".tmp-", ::getpid(), "-", attempt);
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0 && (errno != EEXIST || attempt == 1000)) fail_errno("cannot be written");
  }
  buffer_.reserve(kBuffer);
}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno("cannot be written");
    done += static_cast<size_t>(n);
  }
  buffer_.clear();
}

void AtomicFile::write(const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const size_t part = std::min(size, kBuffer - buffer_.size());
    buffer_.insert(buffer_.end(), bytes, bytes + part);
    bytes += part;
    size -= part;
    if (buffer_.size() == kBuffer) flush();
  }
}

void AtomicFile::write_at(int64_t offset, const void* data, size_t size) {
  flush();
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::pwrite(file_, bytes, size, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno("cannot be written");
    bytes += n;
    offset += n;
    size -= static_cast<size_t>(n);
  }
}

void AtomicFile::commit() {
  flush();
  if (::fsync(file_) != 0) fail_errno("cannot be written");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_errno("cannot be written");
  ::close(file_);
  file_ = -1;
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;  // a folder that can be written but not read: nothing more to do
  ::fsync(folder);
  ::close(folder);
}

}  // namespace compact
