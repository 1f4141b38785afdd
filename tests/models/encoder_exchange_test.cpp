// SPDX-License-Identifier: Apache-2.0
// Encoders: ids, types int64 [batch, sequence], lengths int64 [batch], targets. Into the folder
// COMPACT_EXCHANGE_MODEL, where it is named, goes the model.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "compact/io/json_file.h"
#include "compact/io/model_weights.h"
#include "compact/models/config_rows.h"
#include "compact/models/encoder/encoder.h"
#include "tests/models/exchange.h"

namespace compact {
namespace {

TEST(EncoderExchange, LossLogitsAndGradients) {
  const char* const given = std::getenv("COMPACT_EXCHANGE");
  if (!given) GTEST_SKIP() << "run by tests/models/*.py";
  const std::filesystem::path folder = given;
  const SafetensorsFile input(folder / "input.safetensors");
  const Tensors inputs = {input.read("ids"), input.read("types"), input.read("lengths")};
  // Dropout is off: its bits are ours.
  EncoderConfig config = read_config<EncoderConfig>(read_json(folder / "config.json"), "config");
  config.hidden_dropout = config.attention_dropout = config.classifier_dropout = 0;
  Encoder model(config, Policy::preset(std::getenv("COMPACT_EXCHANGE_PRESET")), {});
  read_weights(model, folder);
  if (const std::string to = std::getenv("COMPACT_EXCHANGE_MODEL"); !to.empty()) {
    write_model_folder(to, model.named_tensors(), write_config(config));
  }

  at::Tensor logits;
  {
    const at::NoGradGuard no_grad;
    logits = model.logits(inputs, {.training = false});
  }
  write_outputs(
      model, logits,
      model.loss(inputs, input.read("targets"), {.scale = input.read("scale").item<double>()}),
      folder);
}

}  // namespace
}  // namespace compact
