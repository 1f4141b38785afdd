// SPDX-License-Identifier: Apache-2.0
// A JPEG file.
#include <vector>

#include "compact/data/images/jpeg.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  static JpegDecoder decoder;  // as in an archive: one for all images, whatever went before
  fuzz::accepted([&] {
    const ImageSize size = decoder.open(bytes, "image");
    std::vector<uint8_t> planes(static_cast<size_t>(3 * size.height * size.width));
    decoder.decode(planes.data());
  });
}
