// SPDX-License-Identifier: Apache-2.0
// Records of CIFAR-10, compressed or not.
#include "compact/data/images/images.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  static const char* const names[] = {"data.bin", "data.bin.gz", "data.bin.xz", "data.bin.zst"};
  const char* name = names[fuzz::choice(bytes, 4)];
  const std::string paths[] = {fuzz::folder().file(name, bytes)};
  fuzz::accepted([&] { read_cifar10(paths); });
}
