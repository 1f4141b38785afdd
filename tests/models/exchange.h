// SPDX-License-Identifier: Apache-2.0
// The C++ halves of tests/models/*.py. In the folder COMPACT_EXCHANGE they read config.json,
// model.safetensors and input.safetensors (inputs, targets, scale f64 []) and write
// output.safetensors: loss, logits, gradients by the names of the weights; beside an
// adapter_config.json those of adapters alone.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <string>

#include "compact/io/model_weights.h"
#include "compact/io/safetensors.h"
#include "compact/networks/network.h"

namespace compact {

inline void read_weights(Network& model, const std::filesystem::path& folder) {
  const at::NoGradGuard no_grad;
  const ModelWeights weights(folder);
  for (auto& [name, t] : model.named_tensors()) {
    const auto has = [&](const std::string& n) { return weights.contains(n); };
    weights.read_into(model.found_name(name, has), t);
  }
}

// Goes backward from the loss. Weights make room for their gradients, so that these have the
// weights' names and parts.
inline void write_outputs(Network& model, const at::Tensor& logits, const at::Tensor& loss,
                          const std::filesystem::path& folder) {
  loss.backward();
  const at::NoGradGuard no_grad;
  for (Parameter* p : model.trained()) p->weight.copy_(p->weight.grad());
  NamedTensors output{{"logits", logits}, {"loss", loss.detach()}};
  const NamedTensors adapters = model.adapter_tensors();
  for (auto& [name, t] : adapters.empty() ? model.named_tensors() : adapters) {
    output.emplace_back(name, t);
  }
  write_safetensors(folder / "output.safetensors", output);
}

}  // namespace compact
