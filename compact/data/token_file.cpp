// SPDX-License-Identifier: Apache-2.0
#include "compact/data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "compact/base/check.h"
#include "compact/data/byte_source.h"
#include "compact/data/token_header.h"

namespace compact {
namespace {

template <class T>
uint32_t largest(const unsigned char* bytes, size_t count) {
  const T* const ids = reinterpret_cast<const T*>(bytes);  // 64-byte aligned by the format
  T most = 0;
  for (size_t i = 0; i < count; ++i) most = std::max(most, ids[i]);
  return most;
}

template <class T>
void widen(const unsigned char* bytes, int64_t begin, std::span<int64_t> out) {
  const T* const ids = reinterpret_cast<const T*>(bytes) + begin;
  for (size_t i = 0; i < out.size(); ++i) out[i] = ids[i];
}

}  // namespace

bool is_token_file(const std::string& path) {
  char start[8] = {};
  std::ifstream file(path, std::ios::binary);
  return file.read(start, sizeof start) && std::memcmp(start, "CompActT", 8) == 0;
}

TokenFile::TokenFile(const std::string& path) : path_(path) {
  size_ = static_cast<size_t>(input_size(path));
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  COMPACT_CHECK(file >= 0, path, ": cannot be opened: ", std::strerror(errno));
  void* const mapping = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
  const int why = errno;
  ::close(file);
  COMPACT_CHECK(mapping != MAP_FAILED, path, ": cannot be mapped: ", std::strerror(why));
  mapping_ = static_cast<const unsigned char*>(mapping);
  try {
    info_ = decode_token_header({mapping_, size_}, path);
    ids_ = mapping_ + token_header_size(info_.tokenizer.size());
    check_contents();
  } catch (...) {
    ::munmap(mapping, size_);
    throw;
  }
}

TokenFile::~TokenFile() { ::munmap(const_cast<unsigned char*>(mapping_), size_); }

void TokenFile::check_contents() const {
  constexpr size_t kPart = size_t{1} << 18;  // bytes: the second reading finds them in the cache
  const size_t size = static_cast<size_t>(info_.count) * static_cast<size_t>(info_.width);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  uint32_t most = 0;
  for (size_t at = 0; at < size; at += kPart) {
    const size_t part = std::min(kPart, size - at);
    XXH3_64bits_update(state.get(), ids_ + at, part);
    most = std::max(most, info_.width == 2 ? largest<uint16_t>(ids_ + at, part / 2)
                                           : largest<uint32_t>(ids_ + at, part / 4));
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
  if (info_.width == 2) {
    widen<uint16_t>(ids_, begin, out);
  } else {
    widen<uint32_t>(ids_, begin, out);
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
  info_ = {.width = tokenizer.vocabulary() <= 1 << 16 ? 2 : 4,
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
