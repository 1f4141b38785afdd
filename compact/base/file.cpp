// SPDX-License-Identifier: Apache-2.0
#include "compact/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "compact/base/check.h"

namespace compact {
namespace {

constexpr int64_t kLargestTransfer = int64_t{1} << 30;  // Linux moves at most 2 GiB a call

}  // namespace

void fail_with_errno(const std::filesystem::path& path, std::string_view what) {
  const int error = errno;
  fail(path.string(), ": ", what, " (", std::generic_category().message(error), ")");
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int FileDescriptor::release() { return std::exchange(fd_, -1); }

void FileDescriptor::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

InputFile::InputFile(const std::filesystem::path& path) : path_(path) {
  // Without O_NONBLOCK, opening a pipe waits for its writer.
  fd_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd_.get() < 0) fail_with_errno(path, "cannot open");
  struct stat status;
  if (::fstat(fd_.get(), &status) != 0) fail_with_errno(path, "cannot stat");
  COMPACT_CHECK(S_ISREG(status.st_mode), path.string(), ": must be a regular file");
  size_ = status.st_size;
  constexpr std::string_view kPointer = "version https://git-lfs.github.com/spec/";
  char start[kPointer.size()];
  constexpr int64_t kLongestPointer = 1024;
  if (size_ < static_cast<int64_t>(sizeof start) || size_ >= kLongestPointer) return;
  read_at(0, start, sizeof start);
  COMPACT_CHECK(std::string_view(start, sizeof start) != kPointer, path.string(),
                ": is a pointer of Git LFS in the place of the file; `git lfs pull` in its "
                "repository fetches it");
}

void InputFile::read_at(int64_t offset, void* to, int64_t bytes) const {
  char* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_.get(), out, std::min(bytes, kLargestTransfer), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_errno(path_, "cannot read");
    COMPACT_CHECK(got > 0, path_.string(), ": ends at byte ", offset, ", where ", bytes,
                  " more are needed");
    out += got;
    offset += got;
    bytes -= got;
  }
}

void write_at(int fd, const std::filesystem::path& path, int64_t offset, const void* from,
              int64_t bytes) {
  const char* in = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(fd, in, std::min(bytes, kLargestTransfer), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_with_errno(path, "cannot write");
    COMPACT_CHECK(put > 0, path.string(), ": cannot write (the system takes no more)");
    in += put;
    offset += put;
    bytes -= put;
  }
}

AppendedFile::AppendedFile(FileDescriptor fd, std::filesystem::path path)
    : fd_(std::move(fd)), path_(std::move(path)), end_(size()) {}

int64_t AppendedFile::size() const {
  const int64_t bytes = ::lseek(fd_.get(), 0, SEEK_END);
  if (bytes < 0) fail_with_errno(path_, "cannot seek");
  return bytes;
}

void AppendedFile::append(std::string_view record) {
  end_ = std::min(end_, size());
  try {
    write_at(fd_.get(), path_, end_, record.data(), static_cast<int64_t>(record.size()));
  } catch (const InputError&) {
    if (::ftruncate(fd_.get(), end_) != 0) fail_with_errno(path_, "cannot cut back");
    throw;
  }
  end_ += static_cast<int64_t>(record.size());
}

std::string read_text(const std::filesystem::path& path, int64_t max_bytes) {
  const InputFile file(path);
  COMPACT_CHECK(file.size() <= max_bytes, path.string(), ": must be at most ", max_bytes,
                " bytes, has ", file.size());
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, text.data(), file.size());
  return text;
}

}  // namespace compact
