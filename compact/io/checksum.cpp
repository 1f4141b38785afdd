// SPDX-License-Identifier: Apache-2.0
#include "compact/io/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

namespace compact {
namespace {

constexpr int64_t kBlock = int64_t{1} << 20;

std::string hexadecimal(uint64_t value) {
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

}  // namespace

std::string xxh3(std::string_view bytes) {
  return hexadecimal(XXH3_64bits(bytes.data(), bytes.size()));
}

std::string xxh3(const InputFile& file, int64_t begin, int64_t bytes) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  std::vector<char> block(static_cast<size_t>(std::min(kBlock, bytes)));
  for (int64_t done = 0; done < bytes;) {
    const int64_t part = std::min(kBlock, bytes - done);
    file.read_at(begin + done, block.data(), part);
    XXH3_64bits_update(state.get(), block.data(), static_cast<size_t>(part));
    done += part;
  }
  return hexadecimal(XXH3_64bits_digest(state.get()));
}

FileDigest digest_file(const std::filesystem::path& path) {
  const InputFile file(path);
  return {file.size(), xxh3(file, 0, file.size())};
}

}  // namespace compact
