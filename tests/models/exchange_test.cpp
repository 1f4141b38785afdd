// SPDX-License-Identifier: Apache-2.0
// Decoders: ids, targets int64 [batch, sequence]. Into the folder COMPACT_EXCHANGE_MODEL, where it
// is named, goes the model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "compact/io/hf_config.h"
#include "compact/io/model_weights.h"
#include "compact/models/llama.h"
#include "tests/models/exchange.h"

namespace compact {
namespace {

TEST(Exchange, LossLogitsAndGradients) {
  const char* const given = std::getenv("COMPACT_EXCHANGE");
  if (!given) GTEST_SKIP() << "run by tests/models/*.py";
  const std::filesystem::path folder = given;
  const SafetensorsFile input(folder / "input.safetensors");
  const at::Tensor ids = input.read("ids"), targets = input.read("targets");
  const LlamaConfig config = read_llama_config(folder);
  Llama model(config, Policy::preset(std::getenv("COMPACT_EXCHANGE_PRESET")),
              {.max_length = ids.size(1)});
  read_weights(model, folder);
  if (const std::string to = std::getenv("COMPACT_EXCHANGE_MODEL"); !to.empty()) {
    write_model_folder(to, model.named_tensors(), llama_config_to_json(config));
  }
  const at::Tensor logits = model.logits(ids);
  write_outputs(model, logits,
                model.loss({ids}, targets, {.scale = input.read("scale").item<double>()}), folder);
}

}  // namespace
}  // namespace compact
