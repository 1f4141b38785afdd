// SPDX-License-Identifier: Apache-2.0
// Height and width of an image.
#pragma once

#include <cstdint>
#include <string>

namespace compact {

// Pixels.
struct ImageSize {
  int64_t height = 0, width = 0;
  bool operator==(const ImageSize&) const = default;
};

// "64 x 48", height first.
std::string str(const ImageSize& size);

}  // namespace compact
