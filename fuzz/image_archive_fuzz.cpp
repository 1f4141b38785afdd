// SPDX-License-Identifier: Apache-2.0
// An archive of class folders of JPEG files, of one size or brought to one.
#include "compact/data/images/image_archive.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  const std::string path = fuzz::folder().file("images.tar", bytes);
  fuzz::accepted([&] { read_image_archive(path); });
  fuzz::accepted([&] {
    const LabelledImages all = read_image_archive(path, ImageSize{5, 7});
    fuzz::require(all.images.size(2) == 5 && all.images.size(3) == 7);
  });
}
