// SPDX-License-Identifier: Apache-2.0
#include "compact/io/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "compact/base/file.h"

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

FileDigest digest_file(const std::filesystem::path& path) {
  const InputFile file(path);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  std::vector<char> block(static_cast<size_t>(std::min(kBlock, file.size())));
  for (int64_t done = 0; done < file.size();) {
    const int64_t bytes = std::min(kBlock, file.size() - done);
    file.read_at(done, block.data(), bytes);
    XXH3_64bits_update(state.get(), block.data(), static_cast<size_t>(bytes));
    done += bytes;
  }
  return {file.size(), hexadecimal(XXH3_64bits_digest(state.get()))};
}

}  // namespace compact
