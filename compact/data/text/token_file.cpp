// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/token_file.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "compact/base/check.h"
#include "compact/data/files/byte_source.h"
#include "compact/data/text/token_header.h"

namespace compact {
namespace {

// Ids of a file in parts of so many bytes: the second look at one finds it in the cache.
constexpr int64_t kPart = int64_t{1} << 18;

template <class T>
uint32_t largest(const unsigned char* bytes, size_t count, T kept) {
  const T* const ids = reinterpret_cast<const T*>(bytes);
  T most = 0;
  for (size_t i = 0; i < count; ++i) most = std::max<T>(most, ids[i] & kept);
  return most;
}

template <class T>
void widen(const unsigned char* bytes, std::span<int64_t> out) {
  const T* const ids = reinterpret_cast<const T*>(bytes);
  for (size_t i = 0; i < out.size(); ++i) out[i] = ids[i];
}

InputFile opened(const std::string& path) {
  input_size(path);
  return InputFile(path);
}

}  // namespace

bool is_token_file(const std::string& path) {
  char start[8] = {};
  std::ifstream file(path, std::ios::binary);
  return file.read(start, sizeof start) && std::memcmp(start, "CompActT", 8) == 0;
}

TokenFile::TokenFile(const std::string& path) : path_(path), file_(opened(path)) {
  const auto size = static_cast<size_t>(file_.size());
  std::vector<unsigned char> head(std::min(size, longest_token_header()));
  file_.read_at(0, head.data(), static_cast<int64_t>(head.size()));
  info_ = decode_token_header(head, size, path);
  begin_ = static_cast<int64_t>(token_header_size(info_.tokenizer.size()));
  check_contents();
}

uint32_t TokenFile::largest_of(const unsigned char* bytes, int64_t count) const {
  const auto size = static_cast<size_t>(count);
  if (info_.width == 2) return largest<uint16_t>(bytes, size, 0xFFFF);
  return largest<uint32_t>(bytes, size,
                           info_.samples ? static_cast<uint32_t>(kSampleBegin - 1) : 0xFFFFFFFF);
}

void TokenFile::check_contents() const {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  uint32_t most = 0;
  std::vector<unsigned char> bytes(kPart);
  const int64_t size = info_.count * info_.width;
  for (int64_t at = 0; at < size; at += kPart) {
    const int64_t part = std::min(kPart, size - at);
    file_.read_at(begin_ + at, bytes.data(), part);
    XXH3_64bits_update(state.get(), bytes.data(), static_cast<size_t>(part));
    most = std::max(most, largest_of(bytes.data(), part / info_.width));
  }
  COMPACT_CHECK(XXH3_64bits_digest(state.get()) == info_.checksum, path_,
                ": token file is corrupt: the checksum of its ids does not match");
  COMPACT_CHECK(size == 0 || most < static_cast<uint64_t>(info_.vocabulary), path_,
                ": every token id must be below the vocabulary, ", info_.vocabulary, ", one is ",
                most);
}

void TokenFile::copy(int64_t begin, std::span<int64_t> out) const {
  const auto size = static_cast<int64_t>(out.size());
  COMPACT_CHECK(begin >= 0 && begin <= count() && size <= count() - begin, path_, ": ids [", begin,
                ", ", begin, " + ", size, ") must be within ", count());
  std::vector<unsigned char> bytes(out.size() * static_cast<size_t>(info_.width));
  file_.read_at(begin_ + begin * info_.width, bytes.data(), static_cast<int64_t>(bytes.size()));
  const uint32_t most = largest_of(bytes.data(), size);
  COMPACT_CHECK(size == 0 || most < static_cast<uint64_t>(info_.vocabulary), path_,
                ": was changed after it was opened: every token id must be below the vocabulary, ",
                info_.vocabulary, ", one is ", most);
  if (info_.width == 2) {
    widen<uint16_t>(bytes.data(), out);
  } else {
    widen<uint32_t>(bytes.data(), out);
  }
}

void TokenFile::check_tokenizer(const Tokenizer& tokenizer) const {
  COMPACT_CHECK(info_.tokenizer_hash == tokenizer.hash(), path_, ": was made with the tokenizer `",
                info_.tokenizer, "` (hash ", std::hex, info_.tokenizer_hash,
                "), must be the one in use, `", tokenizer.spec(), "` (hash ", tokenizer.hash(),
                ")");
}

TokenWriter::TokenWriter(const std::string& path, const Tokenizer& tokenizer)
    : file_(path), checksum_(XXH3_createState()) {
  info_ = {.samples = false,
           .width = tokenizer.vocabulary() <= 1 << 16 ? 2 : 4,
           .count = 0,
           .vocabulary = tokenizer.vocabulary(),
           .end_of_text = tokenizer.end_of_text(),
           .tokenizer_hash = tokenizer.hash(),
           .checksum = 0,
           .tokenizer = tokenizer.spec()};
  XXH3_64bits_reset(checksum_.get());
  const std::string place = encode_token_header(info_);  // written again when all is known
  file_.write(place.data(), place.size());
}

void TokenWriter::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

void TokenWriter::append(std::span<const uint32_t> tokens) {
  for (const uint32_t token : tokens) {
    COMPACT_CHECK(token < static_cast<uint64_t>(info_.vocabulary),
                  "every token id must be below the vocabulary, ", info_.vocabulary, ", one is ",
                  token);
  }
  const void* bytes = tokens.data();
  if (info_.width == 2) {
    narrow_.assign(tokens.begin(), tokens.end());
    bytes = narrow_.data();
  }
  const size_t size = tokens.size() * static_cast<size_t>(info_.width);
  XXH3_64bits_update(checksum_.get(), bytes, size);
  file_.write(bytes, size);
  info_.count += static_cast<int64_t>(tokens.size());
}

void TokenWriter::finish() {
  info_.checksum = XXH3_64bits_digest(checksum_.get());
  const std::string header = encode_token_header(info_);
  file_.write_at(0, header.data(), header.size());
  file_.commit();
}

}  // namespace compact
