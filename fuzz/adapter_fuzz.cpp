// SPDX-License-Identifier: Apache-2.0
// A folder of adapters: after a first byte that is even its settings, else its tensors.
#include <ATen/ATen.h>

#include "compact/io/adapter_folder.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  static const NamedTensors tensors = {
      {"base_model.model.q.lora_A.weight", at::ones({2, 3})},
      {"base_model.model.q.lora_B.weight", at::ones({4, 2})},
  };
  if (fuzz::choice(bytes, 2) == 0) {
    fuzz::folder().file(kAdapterConfig, bytes);
    write_safetensors(fuzz::folder().path() / kAdapterFile, tensors);
  } else {
    fuzz::folder().file(kAdapterConfig, R"({"peft_type": "LORA"})");
    fuzz::folder().file(kAdapterFile, bytes);
  }
  fuzz::accepted([&] {
    AdapterFolder adapters(fuzz::folder().path());
    adapters.add("q.weight", at::zeros({4, 3}));
    adapters.check_all_added();
  });
}
