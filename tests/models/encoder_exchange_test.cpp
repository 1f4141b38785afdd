// SPDX-License-Identifier: Apache-2.0
// The C++ half of tests/models/encoder_parity.py, in the folder COMPACT_EXCHANGE: reads
// config.json, model.safetensors and input.safetensors (ids, types int64 [batch, sequence], lengths
// int64 [batch], targets, scale f64 []); writes output.safetensors: loss, logits, gradients by the
// names of the weights; and into the folder COMPACT_EXCHANGE_MODEL, where it is named, the model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "compact/io/hf_encoder_config.h"
#include "compact/io/model_weights.h"
#include "compact/models/encoder.h"

namespace compact {
namespace {

TEST(EncoderExchange, LossLogitsAndGradients) {
  const char* const given = std::getenv("COMPACT_EXCHANGE");
  if (!given) GTEST_SKIP() << "run by tests/models/*.py";
  const std::filesystem::path folder = given;
  const SafetensorsFile input(folder / "input.safetensors");
  const Tensors inputs = {input.read("ids"), input.read("types"), input.read("lengths")};
  // Dropout is off: its bits are ours.
  EncoderConfig config = read_encoder_config(folder);
  config.hidden_dropout = config.attention_dropout = config.classifier_dropout = 0;
  Encoder model(config, Policy::preset(std::getenv("COMPACT_EXCHANGE_PRESET")), {});
  const ModelWeights weights(folder);
  for (auto& [name, t] : model.named_tensors()) {
    std::string found = name;
    for (const std::string& other : model.other_names(name)) {
      if (!weights.contains(found)) found = other;
    }
    weights.read_into(found, t);
  }
  if (const std::string to = std::getenv("COMPACT_EXCHANGE_MODEL"); !to.empty()) {
    write_model_folder(to, model.named_tensors(), encoder_config_to_json(config));
  }

  NamedTensors output;
  {
    const at::NoGradGuard no_grad;
    output.emplace_back("logits", model.logits(inputs, false));
  }
  const at::Tensor loss =
      model.loss(inputs, input.read("targets"), input.read("scale").item<double>());
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
