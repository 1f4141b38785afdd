// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/byte_source.h"

#include <fcntl.h>
#include <lzma.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/file.h"

namespace compact {
namespace {

constexpr size_t kBuffer = size_t{1} << 16;
constexpr int kWindowLog = 30;  // of zstd and, in bytes, of xz

class FileSource final : public ByteSource {
 public:
  explicit FileSource(const std::string& path) : path_(path) {
    input_size(path);
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    COMPACT_CHECK(fd_ >= 0, path, ": cannot be opened: ", std::strerror(errno));
  }
  FileSource(const FileSource&) = delete;
  ~FileSource() override { ::close(fd_); }

  size_t read(char* out, size_t size) override {
    ssize_t n;
    do {
      n = ::read(fd_, out, size);
    } while (n < 0 && errno == EINTR);
    COMPACT_CHECK(n >= 0, path_, ": cannot be read: ", std::strerror(errno));
    consumed_ += n;
    return static_cast<size_t>(n);
  }
  int64_t consumed() const override { return consumed_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t consumed_ = 0;
};

// The base of the three decompressors: compressed bytes arrive in in_[begin_, end_).
class Decompressor : public ByteSource {
 public:
  explicit Decompressor(const std::string& path) : file_(path), in_(kBuffer) {}
  int64_t consumed() const override { return file_.consumed(); }

 protected:
  // Reads the next bytes if none wait; false at the end of the file.
  bool refill() {
    if (begin_ < end_) return true;
    begin_ = 0;
    end_ = file_.read(in_.data(), in_.size());
    return end_ > 0;
  }
  const char* waiting() const { return in_.data() + begin_; }
  size_t count() const { return end_ - begin_; }
  void take(size_t n) { begin_ += n; }
  [[noreturn]] void cut_short(const char* format) const {
    fail(file_.path(), ": ", format, " data is cut short after ", file_.consumed(), " bytes");
  }
  // Throws the InputError of a format at the next byte that was not read.
  [[noreturn]] void trailing(const char* format) const {
    fail(file_.path(), ": ", format, " data is corrupt at byte ",
         file_.consumed() - static_cast<int64_t>(count()),
         ": what follows its end is neither more of it nor zeros");
  }
  [[noreturn]] void corrupt(const char* format, const char* why) const {
    fail(file_.path(), ": ", format, " data is corrupt before byte ", file_.consumed(), ": ", why);
  }

 private:
  FileSource file_;
  std::vector<char> in_;
  size_t begin_ = 0, end_ = 0;
};

class GzipSource final : public Decompressor {
 public:
  explicit GzipSource(const std::string& path) : Decompressor(path) {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) throw std::bad_alloc();
  }
  ~GzipSource() override { inflateEnd(&stream_); }

  size_t read(char* out, size_t size) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(std::min(size, kBuffer));
    const size_t wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      const bool more = refill();
      if (between_members_ && (!more || !member_begins())) return 0;
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(waiting()));
      stream_.avail_in = static_cast<uInt>(count());
      const int status = inflate(&stream_, Z_NO_FLUSH);
      take(count() - stream_.avail_in);
      between_members_ = status == Z_STREAM_END;
      if (status == Z_STREAM_END) {
        inflateReset(&stream_);
      } else if (status == Z_BUF_ERROR || (status == Z_OK && !more)) {
        if (!more && stream_.avail_out == wanted) cut_short("gzip");
      } else if (status != Z_OK) {
        corrupt("gzip", stream_.msg ? stream_.msg : "no gzip stream");
      }
    }
    return wanted - stream_.avail_out;
  }

 private:
  // gzip files may be joined end to end, and filled up with zeros.
  bool member_begins() {
    constexpr char kMagic = '\x1f';
    if (*waiting() == kMagic) return true;
    while (refill()) {
      const char* const from = waiting();
      take(static_cast<size_t>(std::find_if(from, from + count(), [](char c) { return c != 0; }) -
                               from));
      if (count() > 0) trailing("gzip");
    }
    return false;
  }

  z_stream stream_{};
  bool between_members_ = false;
};

class XzSource final : public Decompressor {
 public:
  explicit XzSource(const std::string& path) : Decompressor(path) {
    if (lzma_stream_decoder(&stream_, uint64_t{1} << kWindowLog, LZMA_CONCATENATED) != LZMA_OK) {
      throw std::bad_alloc();
    }
  }
  ~XzSource() override { lzma_end(&stream_); }

  size_t read(char* out, size_t size) override {
    stream_.next_out = reinterpret_cast<uint8_t*>(out);
    stream_.avail_out = size;
    while (stream_.avail_out == size && !ended_) {
      const bool more = refill();
      stream_.next_in = reinterpret_cast<const uint8_t*>(waiting());
      stream_.avail_in = count();
      const lzma_ret status = lzma_code(&stream_, more ? LZMA_RUN : LZMA_FINISH);
      take(count() - stream_.avail_in);
      if (status == LZMA_STREAM_END) {
        ended_ = true;
      } else if (status == LZMA_BUF_ERROR) {
        cut_short("xz");
      } else if (status == LZMA_MEMLIMIT_ERROR) {
        corrupt("xz", "it needs more than 1 GiB to decompress");
      } else if (status == LZMA_FORMAT_ERROR) {
        corrupt("xz", "no xz stream");
      } else if (status != LZMA_OK) {
        corrupt("xz", "check failed");
      }
    }
    return size - stream_.avail_out;
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool ended_ = false;
};

class ZstdSource final : public Decompressor {
 public:
  explicit ZstdSource(const std::string& path)
      : Decompressor(path), context_(ZSTD_createDCtx(), &ZSTD_freeDCtx) {
    if (!context_) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kWindowLog);
  }

  size_t read(char* out, size_t size) override {
    ZSTD_outBuffer to{out, size, 0};
    while (to.pos == 0) {
      const bool more = refill();
      if (!more && between_frames_) return 0;
      ZSTD_inBuffer from{waiting(), count(), 0};
      const size_t left = ZSTD_decompressStream(context_.get(), &to, &from);
      take(from.pos);
      if (ZSTD_isError(left)) corrupt("zstd", ZSTD_getErrorName(left));
      between_frames_ = left == 0;
      if (!more && to.pos == 0 && !between_frames_) cut_short("zstd");
    }
    return to.pos;
  }

 private:
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context_;
  bool between_frames_ = false;
};

}  // namespace

int64_t input_size(const std::string& path) {
  struct stat status {};
  COMPACT_CHECK(::stat(path.c_str(), &status) == 0, path,
                ": cannot be read: ", std::strerror(errno));
  COMPACT_CHECK(!S_ISDIR(status.st_mode), path, ": is a folder; name files, or a pattern such as ",
                path, path.ends_with('/') ? "" : "/", "*.txt");
  COMPACT_CHECK(S_ISREG(status.st_mode), path, ": must be a regular file");
  COMPACT_CHECK(status.st_size > 0, path, ": is empty (0 bytes)");
  COMPACT_CHECK(::access(path.c_str(), R_OK) == 0, path,
                ": cannot be read: ", std::strerror(errno));
  return InputFile(path).size();
}

std::string_view without_compression(std::string_view path) {
  for (const std::string_view ending : {".gz", ".xz", ".zst"}) {
    if (path.ends_with(ending)) return path.substr(0, path.size() - ending.size());
  }
  return path;
}

std::unique_ptr<ByteSource> open_source(const std::string& path) {
  if (path.ends_with(".gz")) return std::make_unique<GzipSource>(path);
  if (path.ends_with(".xz")) return std::make_unique<XzSource>(path);
  if (path.ends_with(".zst")) return std::make_unique<ZstdSource>(path);
  return std::make_unique<FileSource>(path);
}

}  // namespace compact
