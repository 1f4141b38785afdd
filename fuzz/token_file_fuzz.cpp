// SPDX-License-Identifier: Apache-2.0
// A token file, as it is and with checksums that fit, as somebody would compute them.
#include <xxhash.h>
#include <cstring>
#include <vector>

#include "compact/data/text/token_file.h"
#include "compact/data/text/token_header.h"
#include "fuzz/fuzz.h"

namespace {

// The layout is that of token_file.h.
std::string with_checksums(std::string file) {
  if (file.size() < 64) return file;
  uint32_t spec = 0;
  std::memcpy(&spec, &file[56], sizeof spec);
  const size_t begin = compact::token_header_size(spec);
  if (begin > file.size()) return file;
  const uint64_t ids = XXH3_64bits(file.data() + begin, file.size() - begin);
  std::memcpy(&file[48], &ids, sizeof ids);
  std::memset(&file[60], 0, 4);
  const auto header = static_cast<uint32_t>(XXH3_64bits(file.data(), begin));
  std::memcpy(&file[60], &header, sizeof header);
  return file;
}

}  // namespace

FUZZ(bytes) {
  using namespace compact;
  std::string file(bytes);
  if (fuzz::choice(bytes, 2) == 1) file = with_checksums(std::string(bytes));
  const std::string path = fuzz::folder().file("text.tokens", file);
  fuzz::accepted([&] {
    const TokenFile tokens(path);
    std::vector<int64_t> ids(static_cast<size_t>(tokens.count()));
    tokens.copy(0, ids);
    const int64_t kept = tokens.info().samples ? kSampleBegin - 1 : INT64_MAX;
    for (const int64_t id : ids) {
      fuzz::require(id >= 0 && (id & kept) < tokens.info().vocabulary);
    }
  });
}
