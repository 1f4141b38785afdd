// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/token_header.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "compact/base/check.h"

namespace compact {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[] = "CompActT";
constexpr uint32_t kText = 1, kSamples = 2, kPairs = 3;  // versions
constexpr size_t kFixed = 64;                            // bytes before the spec
constexpr size_t kChecksumAt = 60;
constexpr uint32_t kLongestSpec = 1 << 16;

template <class T>
T load(const unsigned char* bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

template <class T>
void store(std::string& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

uint32_t header_checksum(std::string header) {
  store<uint32_t>(header, kChecksumAt, 0);
  return static_cast<uint32_t>(XXH3_64bits(header.data(), header.size()));
}

// A message must stay one line.
bool all_printable(const std::string& spec) {
  return std::all_of(spec.begin(), spec.end(),
                     [](char c) { return static_cast<unsigned char>(c) >= 0x20; });
}

}  // namespace

size_t token_header_size(size_t spec_length) { return (kFixed + spec_length + 63) / 64 * 64; }

size_t longest_token_header() { return token_header_size(kLongestSpec); }

std::string encode_token_header(const TokenFileInfo& info) {
  COMPACT_CHECK(info.tokenizer.size() <= kLongestSpec, "a tokenizer's spec must be at most ",
                kLongestSpec, " bytes, has ", info.tokenizer.size());
  COMPACT_CHECK(all_printable(info.tokenizer),
                "a tokenizer's spec must hold no control characters");
  std::string header(token_header_size(info.tokenizer.size()), '\0');
  header.replace(0, 8, kMagic);
  store<uint32_t>(header, 8, info.pairs ? kPairs : info.samples ? kSamples : kText);
  store<uint32_t>(header, 12, static_cast<uint32_t>(info.width));
  store<uint64_t>(header, 16, static_cast<uint64_t>(info.count));
  store<uint64_t>(header, 24, static_cast<uint64_t>(info.vocabulary));
  store<uint64_t>(header, 32, info.end_of_text);
  store<uint64_t>(header, 40, info.tokenizer_hash);
  store<uint64_t>(header, 48, info.checksum);
  store<uint32_t>(header, 56, static_cast<uint32_t>(info.tokenizer.size()));
  header.replace(kFixed, info.tokenizer.size(), info.tokenizer);
  store<uint32_t>(header, kChecksumAt, header_checksum(header));
  return header;
}

TokenFileInfo decode_token_header(std::span<const unsigned char> head, uint64_t size,
                                  const std::string& path) {
  const unsigned char* const bytes = head.data();
  COMPACT_CHECK(size >= 8 && std::memcmp(bytes, kMagic, 8) == 0, path,
                ": must be a token file, but does not start with ", kMagic);
  COMPACT_CHECK(size >= kFixed, path, ": token file is cut short: the header has ", kFixed,
                " bytes, the file ", size);
  const auto version = load<uint32_t>(bytes, 8);
  COMPACT_CHECK(version >= kText && version <= kPairs, path, ": token file version must be from ",
                kText, " to ", kPairs, ", is ", version);
  const bool samples = version != kText;
  const auto spec_length = load<uint32_t>(bytes, 56);
  COMPACT_CHECK(spec_length <= kLongestSpec, path, ": tokenizer name must be at most ",
                kLongestSpec, " bytes, has ", spec_length);
  const size_t start = token_header_size(spec_length);
  COMPACT_CHECK(size >= start, path, ": token file is cut short: the header has ", start,
                " bytes, the file ", size);
  const std::string header(reinterpret_cast<const char*>(bytes), start);
  COMPACT_CHECK(header_checksum(header) == load<uint32_t>(bytes, kChecksumAt), path,
                ": token file header is corrupt: its checksum does not match");
  // Whoever writes a file can compute its checksum: every value is still checked.
  const auto width = load<uint32_t>(bytes, 12);
  COMPACT_CHECK(width == 4 || (width == 2 && !samples), path, ": bytes per id must be ",
                samples ? "4" : "2 or 4", ", is ", width);
  const auto count = load<uint64_t>(bytes, 16);
  const uint64_t stored = (size - start) / width;
  COMPACT_CHECK(count <= stored, path, ": token file is cut short: its header tells of ", count,
                " ids, the file holds ", stored);
  COMPACT_CHECK(size - start == count * width, path, ": token file has ",
                size - start - count * width, " bytes after its ", count, " ids");
  const auto vocabulary = load<uint64_t>(bytes, 24);
  const uint64_t most = uint64_t{1} << (width == 2 ? 16 : samples ? 30 : 31);
  COMPACT_CHECK(vocabulary >= 1 && vocabulary <= most, path, ": vocabulary must be in [1, ", most,
                "], is ", vocabulary);
  const auto end_of_text = load<uint64_t>(bytes, 32);
  COMPACT_CHECK(end_of_text < vocabulary, path, ": end of text must be below the vocabulary, ",
                vocabulary, ", is ", end_of_text);
  std::string spec = header.substr(kFixed, spec_length);
  COMPACT_CHECK(all_printable(spec), path, ": tokenizer name must hold no control characters");
  return {.samples = samples,
          .pairs = version == kPairs,
          .width = static_cast<int>(width),
          .count = static_cast<int64_t>(count),
          .vocabulary = static_cast<int64_t>(vocabulary),
          .end_of_text = static_cast<uint32_t>(end_of_text),
          .tokenizer_hash = load<uint64_t>(bytes, 40),
          .checksum = load<uint64_t>(bytes, 48),
          .tokenizer = std::move(spec)};
}

}  // namespace compact
