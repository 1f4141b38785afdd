// SPDX-License-Identifier: Apache-2.0
// A model folder whose index names shards.
#include "compact/io/model_weights.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  static const std::string shard = [] {
    constexpr std::string_view header = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    return fuzz::folder().file("one.safetensors", file + std::string(header) + "xyz");
  }();
  fuzz::folder().file("model.safetensors.index.json", bytes);
  fuzz::accepted([&] {
    const ModelWeights weights(fuzz::folder().path());
    for (const std::string& name : weights.names()) weights.read(name);
  });
}
