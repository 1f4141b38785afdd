// SPDX-License-Identifier: Apache-2.0
// A folder with matrices in NF4: after a first byte that is even its config.json, else its tensors.
#include "compact/tasks/nf4_folder.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  if (fuzz::choice(bytes, 2) == 0) {
    fuzz::folder().file("config.json", bytes);
    fuzz::accepted([&] { read_in_nf4(fuzz::folder().path().string()); });
    return;
  }
  const std::string file = fuzz::folder().file("model.safetensors", bytes);
  fuzz::accepted([&] {
    const ModelWeights weights(file);
    for (const std::string& name : weights.names()) {
      if (is_part_of_nf4(weights, name) || !has_nf4(weights, name)) continue;
      const StoredNf4 stored = read_nf4(weights, name);
      const at::Tensor matrix = decoded(stored.codes, stored.type);
      fuzz::require(matrix.numel() == stored.codes.rows * stored.codes.columns);
    }
  });
}
