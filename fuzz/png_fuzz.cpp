// SPDX-License-Identifier: Apache-2.0
// A PNG file.
#include <vector>

#include "compact/data/images/jpeg.h"
#include "compact/data/images/png_decoder.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  fuzz::accepted([&] {
    const PngDecoder decoder(bytes, "image", JpegDecoder::kLargestSide);
    const ImageSize size = decoder.sides();
    std::vector<uint8_t> planes(static_cast<size_t>(3 * size.height * size.width));
    decoder.decode(planes.data());
  });
}
