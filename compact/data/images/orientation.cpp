// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/orientation.h"

namespace compact {

int exif_orientation(std::string_view tiff) {
  const bool little = tiff.starts_with("II");
  if (!little && !tiff.starts_with("MM")) return 1;
  // Numbers past the end are 0.
  const auto number = [&](size_t at, size_t bytes) {
    size_t value = 0;
    for (size_t i = 0; i < bytes; ++i) {
      const size_t place = at + (little ? bytes - 1 - i : i);
      value = value << 8 | (place < tiff.size() ? static_cast<unsigned char>(tiff[place]) : 0);
    }
    return value;
  };
  constexpr size_t kOrientation = 0x112, kShort = 3, kEntry = 12;
  const size_t folder = number(4, 4);
  for (size_t i = 0; i < number(folder, 2); ++i) {
    const size_t entry = folder + 2 + i * kEntry;
    if (entry + kEntry > tiff.size()) return 1;
    if (number(entry, 2) != kOrientation || number(entry + 2, 2) != kShort) continue;
    const auto value = static_cast<int>(number(entry + 8, 2));
    return value >= 1 && value <= 8 ? value : 1;
  }
  return 1;
}

ImageSize turned_size(const ImageSize& stored, int orientation) {
  return orientation < 5 ? stored : ImageSize{stored.width, stored.height};
}

void turn_planes(const uint8_t* planes, const ImageSize& stored, int orientation, uint8_t* to) {
  const ImageSize sides = turned_size(stored, orientation);
  const int64_t height = stored.height, width = stored.width;
  const bool turned = orientation > 4;
  const bool up = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool left = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  for (int64_t plane = 0; plane < 3; ++plane, planes += height * width) {
    for (int64_t y = 0; y < sides.height; ++y) {
      for (int64_t x = 0; x < sides.width; ++x) {
        const int64_t row = turned ? x : y, column = turned ? y : x;
        *to++ =
            planes[(up ? height - 1 - row : row) * width + (left ? width - 1 - column : column)];
      }
    }
  }
}

}  // namespace compact
