// SPDX-License-Identifier: Apache-2.0
// Images and labels in idx files: the first byte says how many bytes are the labels.
#include <algorithm>

#include "compact/data/images/images.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  const size_t cut = std::min(fuzz::choice(bytes, 256), bytes.size());
  const std::string labels = fuzz::folder().file("labels", bytes.substr(0, cut));
  const std::string images = fuzz::folder().file("images", bytes.substr(cut));
  fuzz::accepted([&] { read_idx(images, labels); });
}
