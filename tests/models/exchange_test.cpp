// SPDX-License-Identifier: Apache-2.0
// The C++ half of tests/models/*.py, in the folder COMPACT_EXCHANGE: reads config.json,
// model.safetensors and input.safetensors (ids, targets int64 [batch, sequence], scale f64 []);
// writes output.safetensors: loss, logits, gradients by the names of the weights.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "compact/io/hf_config.h"
#include "compact/io/model_weights.h"
#include "compact/models/llama.h"

namespace compact {
namespace {

TEST(Exchange, LossLogitsAndGradients) {
  const char* const given = std::getenv("COMPACT_EXCHANGE");
  if (!given) GTEST_SKIP() << "run by tests/models/*.py";
  const std::filesystem::path folder = given;
  const SafetensorsFile input(folder / "input.safetensors");
  const at::Tensor ids = input.read("ids"), targets = input.read("targets");
  const Llama model(read_llama_config(folder),
                    Policy::preset(std::getenv("COMPACT_EXCHANGE_PRESET")),
                    {.max_length = ids.size(1)});
  const ModelWeights weights(folder);
  for (auto& [name, t] : model.named_tensors()) weights.read_into(name, t);

  NamedTensors output;
  output.emplace_back("logits", model.logits(ids));
  const at::Tensor loss = model.loss(ids, targets, input.read("scale").item<double>());
  loss.backward();
  output.emplace_back("loss", loss.detach());
  {
    // Weights make room for their gradients, so that these have the weights' names and parts.
    const at::NoGradGuard no_grad;
    for (Parameter* p : model.parameters()) p->weight.copy_(p->weight.grad());
  }
  for (auto& [name, t] : model.named_tensors()) output.emplace_back(name, t);
  write_safetensors(folder / "output.safetensors", output);
}

}  // namespace
}  // namespace compact
