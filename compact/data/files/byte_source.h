// SPDX-License-Identifier: Apache-2.0
// The bytes of an input file, decompressed while reading: `.gz`, `.xz` and `.zst` by the name's
// ending, everything else as it is. Memory is constant: two small buffers and the window that the
// compressed stream asks for, at most 1 GiB (a stream that asks for more is refused). Streams may
// be joined end to end; what else follows one is refused, but for zeros after `.gz` and, by fours,
// after `.xz`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "compact/base/check.h"

namespace compact {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills up to `size` bytes and returns how many; 0 only at the end. Throws InputError where the
  // file cannot be read, or its compressed data is corrupt or cut short.
  virtual size_t read(char* out, size_t size) = 0;
  // Bytes of the file itself, so compressed ones, taken so far.
  virtual int64_t consumed() const = 0;
};

// Opens `path`, a regular and non-empty file; throws InputError with the path and the rule.
std::unique_ptr<ByteSource> open_source(const std::string& path);

// The size of a regular, non-empty, readable file in bytes; throws InputError on anything else.
int64_t input_size(const std::string& path);

// `name.jsonl.gz` -> `name.jsonl`.
std::string_view without_compression(std::string_view path);

// The row of a table of formats whose `ending` the name has, perhaps followed by that of a
// compression. Throws InputError with all endings where there is none.
template <class Format, size_t count>
const Format& format_of(const std::string& path, const Format (&formats)[count]) {
  std::string endings;
  for (size_t i = 0; i < count; ++i) {
    if (without_compression(path).ends_with(formats[i].ending)) return formats[i];
    endings += cat(i == 0 ? "" : i + 1 == count ? " or " : ", ", formats[i].ending);
  }
  const std::string_view name = without_compression(path);
  const bool rows =
      name.ends_with(".parquet") || name.ends_with(".arrow") || name.ends_with(".json");
  fail(path, ": the name must end in ", endings, ", then perhaps .gz, .xz or .zst",
       rows ? "; `compact prepare --data` makes tokens of its rows" : "");
}

}  // namespace compact
