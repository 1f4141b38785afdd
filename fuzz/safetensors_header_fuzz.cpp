// SPDX-License-Identifier: Apache-2.0
// The header alone, in front of as many bytes as the first eight say.
#include <cstring>

#include "compact/io/safetensors_header.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  int64_t data_bytes = 0;
  if (bytes.size() < sizeof data_bytes) return;
  std::memcpy(&data_bytes, bytes.data(), sizeof data_bytes);
  if (data_bytes < 0) return;
  fuzz::accepted([&] {
    const SafetensorsHeader header =
        parse_safetensors_header(bytes.substr(sizeof data_bytes), data_bytes, "header");
    int64_t end = 0;
    for (const TensorEntry& entry : header.entries) {
      fuzz::require(entry.begin == end && entry.end >= entry.begin);
      end = entry.end;
    }
    fuzz::require(end == data_bytes);
  });
}
