// SPDX-License-Identifier: Apache-2.0
// PNG images as planes of bytes, red, green, blue, as Pillow's convert("RGB") has them: greyscale
// and palettes are widened, 16 bits cut to 8, transparency dropped. All are turned as EXIF says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "compact/data/images/image_size.h"

namespace compact {

bool is_png(std::string_view bytes);

class PngDecoder {
 public:
  // Reads all of the image. Throws OddOne, beginning with `where`, on what is not a whole PNG and
  // on sides beyond `most`.
  PngDecoder(std::string_view bytes, const std::string& where, int64_t most);

  ImageSize sides() const;  // turned
  // Fills to[3 * height * width].
  void decode(uint8_t* to) const;

 private:
  ImageSize stored_;
  int orientation_ = 1;
  std::string pixels_;  // red, green, blue of each pixel
};

}  // namespace compact
