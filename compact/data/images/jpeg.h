// SPDX-License-Identifier: Apache-2.0
// JPEG images as planes of bytes, red, green, blue; greyscale ones are widened, those for printers
// converted as Pillow does, and all turned as EXIF says. Decoded by libjpeg, whose warnings are
// errors here: they say that data is missing or damaged.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "compact/data/images/image_size.h"

namespace compact {

class JpegDecoder {
 public:
  static constexpr int64_t kLargestSide = 4096;

  JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  ~JpegDecoder();

  // Reads the header. `bytes` must live until decode() is done; `where` begins messages. Throws
  // OddOne on what is no JPEG, on sides beyond kLargestSide and on other colours.
  ImageSize open(std::string_view bytes, const std::string& where);

  // Fills planes[3 * height * width] of the image opened last. Throws OddOne where it is cut,
  // damaged or has more than 100 scans.
  void decode(uint8_t* planes);

 private:
  struct State;
  template <class Step>
  void guarded(const Step& step);

  std::unique_ptr<State> state_;
};

}  // namespace compact
