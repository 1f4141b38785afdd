// SPDX-License-Identifier: Apache-2.0
// A safetensors file: opened, and every tensor read.
#include "compact/io/safetensors.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  const std::string path = fuzz::folder().file("model.safetensors", bytes);
  fuzz::accepted([&] {
    const SafetensorsFile file(path);
    for (const TensorEntry& entry : file.entries()) {
      fuzz::accepted([&] { file.read(entry.name); });
    }
  });
}
