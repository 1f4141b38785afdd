// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <locale.h>
#include <xxhash.h>

#include <algorithm>
#include <new>
#include <string_view>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/data/files/byte_source.h"
#include "compact/data/files/odd_ones.h"
#include "compact/data/files/printable.h"

namespace compact {
namespace {

constexpr size_t kLongestName = 512;
constexpr size_t kArchiveBlock = size_t{1} << 16;  // of the file
constexpr size_t kStep = 4096;                     // by which a member grows, at least

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

ArchiveReader::ArchiveReader(const std::string& path, int64_t most_members)
    : path_(path), archive_(archive_read_new()), most_members_(most_members) {
  input_size(path);
  archive* const a = archive_.get();
  if (!a) throw std::bad_alloc();
  // Zip files are read by the reader that needs the directory at the end: a file without it is cut.
  // Data after the end mark of a tar file is read too, so that a compressed stream is checked to
  // its end.
  for (const int status :
       {archive_read_support_format_tar(a), archive_read_support_format_zip_seekable(a),
        archive_read_support_filter_gzip(a), archive_read_support_filter_bzip2(a),
        archive_read_support_filter_xz(a), archive_read_support_filter_lzma(a),
        archive_read_support_filter_zstd(a), archive_read_support_filter_lz4(a),
        archive_read_set_option(a, "tar", "read_concatenated_archives", "1")}) {
    if (status != ARCHIVE_OK) broken(path_);
  }
  if (archive_read_open_filename(a, path.c_str(), kArchiveBlock) != ARCHIVE_OK) broken(path_);
}

std::string ArchiveReader::where() const { return path_ + ": member " + name_; }

void ArchiveReader::broken(const std::string& where) const {
  const char* const why = archive_error_string(archive_.get());
  fail(where,
       ": no whole archive of the kinds tar and zip: ", printable(why ? why : "unknown reason"));
}

bool ArchiveReader::is_format(int format) const {
  return (archive_format(archive_.get()) & ARCHIVE_FORMAT_BASE_MASK) == format;
}

// A decompressor stops at the end of its data; as gzip, bzip2 and xz do, zeros after it are
// ignored.
void ArchiveReader::check_rest() const {
  archive* const a = archive_.get();
  if (archive_filter_code(a, 0) == ARCHIVE_FILTER_NONE) return;
  const InputFile file(path_);
  std::string bytes(kArchiveBlock, '\0');
  for (int64_t at = archive_filter_bytes(a, -1); at < file.size();) {
    bytes.resize(std::min(kArchiveBlock, static_cast<size_t>(file.size() - at)));
    file.read_at(at, bytes.data(), static_cast<int64_t>(bytes.size()));
    const size_t other = bytes.find_first_not_of('\0');
    COMPACT_CHECK(other == bytes.npos, path_, ": ", archive_filter_name(a, 0),
                  " data is corrupt at byte ", at + static_cast<int64_t>(other),
                  ": what follows its end is neither more of it nor zeros");
    at += static_cast<int64_t>(bytes.size());
  }
}

// The end record of a zip archive states the length of the comment that follows it; nothing follows
// that. A comment may hold what looks like an end record.
void ArchiveReader::check_zip_end() const {
  constexpr std::string_view kMark = "PK\5\6";
  constexpr size_t kRecord = 22, kLongestComment = 0xffff;
  const InputFile file(path_);
  const auto size = static_cast<size_t>(file.size());
  std::string end(std::min(size, kRecord + kLongestComment), '\0');
  const size_t begin = size - end.size();
  file.read_at(static_cast<int64_t>(begin), end.data(), static_cast<int64_t>(end.size()));
  std::string last;
  for (size_t at = end.rfind(kMark); at != end.npos;
       at = at ? end.rfind(kMark, at - 1) : end.npos) {
    if (end.size() - at < kRecord) continue;
    const auto byte = [&](size_t i) { return size_t{static_cast<unsigned char>(end[at + i])}; };
    const size_t stated = byte(20) | byte(21) << 8, there = end.size() - at - kRecord;
    if (stated == there) return;
    if (last.empty()) {
      last = cat(": the zip archive's end record states a comment of ", stated,
                 " bytes, from byte ", begin + at + kRecord, " on ", there, " follow");
    }
  }
  fail(path_, last.empty() ? ": the zip archive has no end record in its last 65557 bytes" : last);
}

// A tar file that is cut between two members lacks the blocks of zeros at its end.
void ArchiveReader::check_end() const {
  archive* const a = archive_.get();
  check_rest();
  if (!is_format(ARCHIVE_FORMAT_TAR)) return;
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
    // Names that are not UTF-8 give a warning.
    if (status != ARCHIVE_OK && status != ARCHIVE_WARN) broken(path_);
    if (members_ == 0 && is_format(ARCHIVE_FORMAT_ZIP)) check_zip_end();
    COMPACT_CHECK(++members_ <= most_members_, path_, ": must have at most ", most_members_,
                  " members, has more");
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
    const XXH128_hash_t digest = XXH3_128bits(name_.data(), name_.size());
    COMPACT_CHECK(seen_.insert({digest.low64, digest.high64}).second, where(), ": is there twice");
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
    if (static_cast<int64_t>(done) > most) {
      throw OddOne(cat(where(), ": must have at most ", most, " bytes, has more"));
    }
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace compact
