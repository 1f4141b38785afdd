// SPDX-License-Identifier: Apache-2.0
#include "compact/data/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <locale.h>

#include <algorithm>
#include <new>
#include <string_view>

#include "compact/base/check.h"
#include "compact/data/byte_source.h"
#include "compact/data/printable.h"

namespace compact {
namespace {

constexpr size_t kLongestName = 512;
constexpr size_t kBlock = size_t{1} << 16;  // of the file
constexpr size_t kStep = 4096;              // by which a member grows, at least

// Without "./" parts and doubled slashes.
std::string checked_name(std::string_view name, const std::string& path) {
  COMPACT_CHECK(!name.empty() && name.size() <= kLongestName, path,
                ": names of members must have from 1 to ", kLongestName, " bytes, one has ",
                name.size());
  const std::string shown = printable(name);
  for (const char c : name) {
    COMPACT_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f && c != '\\', path,
                  ": names of members must be without control characters and backslashes: ", shown);
  }
  COMPACT_CHECK(name.front() != '/', path, ": names of members must be relative: ", shown);
  std::string out;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    COMPACT_CHECK(part != "..", path, ": names of members must be without `..`: ", shown);
    if (!part.empty() && part != ".") {
      if (!out.empty()) out += '/';
      out += part;
    }
    begin = end + 1;
  }
  return out;
}

// While it lives, names are UTF-8 to this thread: libarchive turns them into the locale's letters,
// and the locale C has but ASCII.
class Utf8Names {
 public:
  Utf8Names() {
    static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", locale_t{});
    if (utf8) before_ = ::uselocale(utf8);
  }
  Utf8Names(const Utf8Names&) = delete;
  ~Utf8Names() {
    if (before_) ::uselocale(before_);
  }

 private:
  locale_t before_{};
};

}  // namespace

void ArchiveReader::Close::operator()(archive* a) const { archive_read_free(a); }

ArchiveReader::ArchiveReader(const std::string& path) : path_(path), archive_(archive_read_new()) {
  input_size(path);
  archive* const a = archive_.get();
  if (!a) throw std::bad_alloc();
  // Of zip only the reader that needs the directory at the file's end: without it, the file is cut.
  // Of tar, what follows an end mark is read too, so that a compressed stream is checked to its
  // end.
  for (const int status :
       {archive_read_support_format_tar(a), archive_read_support_format_zip_seekable(a),
        archive_read_support_filter_gzip(a), archive_read_support_filter_bzip2(a),
        archive_read_support_filter_xz(a), archive_read_support_filter_lzma(a),
        archive_read_support_filter_zstd(a), archive_read_support_filter_lz4(a),
        archive_read_set_option(a, "tar", "read_concatenated_archives", "1")}) {
    if (status != ARCHIVE_OK) broken(path_);
  }
  if (archive_read_open_filename(a, path.c_str(), kBlock) != ARCHIVE_OK) broken(path_);
}

std::string ArchiveReader::where() const { return path_ + ": member " + name_; }

void ArchiveReader::broken(const std::string& where) const {
  const char* const why = archive_error_string(archive_.get());
  fail(where,
       ": no whole archive of the kinds tar and zip: ", printable(why ? why : "unknown reason"));
}

// A tar file that is cut between two members lacks the blocks of zeros at its end.
void ArchiveReader::check_end() const {
  archive* const a = archive_.get();
  if ((archive_format(a) & ARCHIVE_FORMAT_BASE_MASK) != ARCHIVE_FORMAT_TAR) return;
  COMPACT_CHECK(archive_filter_bytes(a, 0) > archive_read_header_position(a), path_,
                ": the tar archive is cut short after ", archive_filter_bytes(a, 0), " bytes");
}

bool ArchiveReader::next() {
  archive* const a = archive_.get();
  const Utf8Names utf8;
  while (true) {
    archive_entry* entry = nullptr;
    const int status = archive_read_next_header(a, &entry);
    if (status == ARCHIVE_EOF) {
      check_end();
      return false;
    }
    // A warning is that a name is no UTF-8.
    if (status != ARCHIVE_OK && status != ARCHIVE_WARN) broken(path_);
    const char* name = archive_entry_pathname_utf8(entry);
    if (!name) name = archive_entry_pathname(entry);
    COMPACT_CHECK(name, path_, ": a member has no readable name");
    name_ = checked_name(name, path_);
    COMPACT_CHECK(!archive_entry_hardlink(entry) && !archive_entry_symlink(entry), where(),
                  ": links are not read");
    const auto type = archive_entry_filetype(entry);
    if (type == AE_IFDIR) continue;
    COMPACT_CHECK(type == AE_IFREG, where(), ": must be a file or folder");
    COMPACT_CHECK(!archive_entry_is_encrypted(entry), where(), ": is encrypted");
    COMPACT_CHECK(!name_.empty(), path_, ": a member has no name");
    COMPACT_CHECK(seen_.insert(name_).second, where(), ": is there twice");
    return true;
  }
}

std::string ArchiveReader::read(int64_t most) {
  std::string bytes;
  size_t done = 0;
  while (true) {
    if (bytes.size() - done < kStep) bytes.resize(done + done / 2 + kStep);
    const la_ssize_t got =
        archive_read_data(archive_.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0) broken(where());
    if (got == 0) break;
    done += static_cast<size_t>(got);
    COMPACT_CHECK(static_cast<int64_t>(done) <= most, where(), ": must have at most ", most,
                  " bytes, has more");
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace compact
