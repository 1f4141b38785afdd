// SPDX-License-Identifier: Apache-2.0
// LLaMA: ids, targets int64 [batch, sequence].
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "compact/io/hf_config.h"
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
  Llama model(read_llama_config(folder), Policy::preset(std::getenv("COMPACT_EXCHANGE_PRESET")),
              {.max_length = ids.size(1)});
  read_weights(model, folder);
  const at::Tensor logits = model.logits(ids);
  write_outputs(model, logits,
                model.loss({ids}, targets, {.scale = input.read("scale").item<double>()}), folder);
}

}  // namespace
}  // namespace compact
