// SPDX-License-Identifier: Apache-2.0
// The common part of the fuzz targets. A target gives its reader any bytes; the reader may throw
// InputError and nothing else. Every other exception, a fault, a leak, or memory and time beyond
// the limits of scripts/fuzz.sh is a finding.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "compact/base/check.h"

namespace compact::fuzz {

// Runs f(). Returns whether it came to its end; an InputError must have a message of one line.
template <class F>
bool accepted(F&& f) {
  try {
    f();
    return true;
  } catch (const InputError& error) {
    if (*error.what() == '\0') std::abort();
    return false;
  }
}

// Ends the process where a rule of the target's own does not hold.
inline void require(bool holds) {
  if (!holds) std::abort();
}

// A folder of this process in memory, where the system has that, removed at its end.
class Folder {
 public:
  Folder() {
    const std::filesystem::path memory = "/dev/shm";
    path_ =
        (std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path()) /
        ("compact-fuzz-" + std::to_string(::getpid()));
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

  // Writes a file and returns its path.
  std::string file(const std::string& name, std::string_view bytes) const {
    const std::string path = (path_ / name).string();
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<int64_t>(bytes.size()));
    return path;
  }

 private:
  std::filesystem::path path_;
};

inline const Folder& folder() {
  static const Folder one;
  return one;
}

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Takes the first byte off, as a choice among `count`; 0 where there is none.
inline size_t choice(std::string_view& bytes, size_t count) {
  if (bytes.empty()) return 0;
  const auto first = static_cast<unsigned char>(bytes[0]);
  bytes.remove_prefix(1);
  return first % count;
}

}  // namespace compact::fuzz

// FUZZ(bytes) { read(bytes); }
#define FUZZ(bytes)                                                         \
  static void fuzz_one(std::string_view bytes);                             \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    fuzz_one(compact::fuzz::text_of(data, size));                           \
    return 0;                                                               \
  }                                                                         \
  static void fuzz_one(std::string_view bytes)
