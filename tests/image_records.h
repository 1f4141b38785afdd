// SPDX-License-Identifier: Apache-2.0
// Small images that a network can tell apart.
#pragma once

#include <filesystem>
#include <string>

#include "compact/base/philox.h"
#include "tests/temporary_folder.h"

namespace compact {

// CIFAR-10 records whose brightness tells the class.
inline void write_images(const std::filesystem::path& path, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    const int label = i % 10;
    bytes += static_cast<char>(label);
    for (uint64_t p = 0; p < 3 * 32 * 32; ++p) {
      bytes += static_cast<char>(20 * label + philox(7, p, static_cast<uint64_t>(i)).v[0] % 40);
    }
  }
  spill(path, bytes);
}

}  // namespace compact
