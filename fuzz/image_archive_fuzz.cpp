// SPDX-License-Identifier: Apache-2.0
// An archive of class folders of JPEG files.
#include "compact/data/image_archive.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  const std::string path = fuzz::folder().file("images.tar", bytes);
  fuzz::accepted([&] { read_image_archive(path); });
}
