// SPDX-License-Identifier: Apache-2.0
// XXH3, 64 bits: finds damage, not intent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "compact/base/file.h"

namespace compact {

// 16 hexadecimal digits.
std::string xxh3(std::string_view bytes);

// The same for part of a file, read in constant memory. InputError where the file ends before.
std::string xxh3(const InputFile& file, int64_t begin, int64_t bytes);

struct FileDigest {
  int64_t bytes = 0;
  std::string xxh3;
  bool operator==(const FileDigest&) const = default;
};

// Reads the file once, in constant memory.
FileDigest digest_file(const std::filesystem::path& path);

}  // namespace compact
