// SPDX-License-Identifier: Apache-2.0
// Decoders: ids, targets int64 [batch, sequence]. Into the folder COMPACT_EXCHANGE_MODEL, where it
// is named, goes the model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "compact/io/json_file.h"
#include "compact/io/model_weights.h"
#include "compact/models/classifier.h"
#include "compact/models/families.h"
#include "compact/models/language_model.h"
#include "tests/models/exchange.h"

namespace compact {
namespace {

// Reads and writes config.json of each folder in COMPACT_EXCHANGE.
TEST(ConfigExchange, IsWrittenAsItWasRead) {
  const char* const given = std::getenv("COMPACT_EXCHANGE");
  if (!given) GTEST_SKIP() << "run by tests/models/*.py";
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(given)) {
    folders.push_back(entry.path().string());
  }
  ASSERT_FALSE(folders.empty());
  for (const std::string& folder : folders) {
    const nlohmann::json read = read_json(folder + "/config.json");
    const auto config = read_model(folder, use_of(read, folder));
    std::filesystem::create_directory(folder + "_back");
    const nlohmann::json type = read.value("dtype", nlohmann::json("float32"));
    write_json(folder + "_back/config.json", config->to_json(type.get<std::string>()));
  }
}

TEST(Exchange, LossLogitsAndGradients) {
  const char* const given = std::getenv("COMPACT_EXCHANGE");
  if (!given) GTEST_SKIP() << "run by tests/models/*.py";
  const std::filesystem::path folder = given;
  const SafetensorsFile input(folder / "input.safetensors");
  const at::Tensor ids = input.read("ids"), targets = input.read("targets");
  const std::unique_ptr<ModelConfig> config = read_model(folder, ModelUse::kTokens);
  ModelShape shape = config->shape();
  shape.dropout = 0;  // whose bits are ours
  config->fit(shape);
  NetworkOptions options = {.max_length = ids.size(1)};
  const std::filesystem::path adapters = folder / "adapter_config.json";
  if (std::filesystem::exists(adapters)) {
    const nlohmann::json said = read_json(adapters);
    options.lora = {.rank = said["r"], .alpha = said["lora_alpha"], .rslora = said["use_rslora"]};
    if (said["target_modules"].size() < 4) options.lora.targets = said["target_modules"];
  }
  const std::unique_ptr<Network> network =
      config->build(Policy::preset(std::getenv("COMPACT_EXCHANGE_PRESET")), options);
  auto& model = dynamic_cast<LanguageModel&>(*network);
  read_weights(model, folder);
  if (options.lora.rank > 0) {
    const at::NoGradGuard no_grad;
    const SafetensorsFile file(folder / "adapter_model.safetensors");
    for (auto& [name, t] : model.adapter_tensors()) file.read_into(name, t);
  }
  if (const std::string to = std::getenv("COMPACT_EXCHANGE_MODEL"); !to.empty()) {
    write_model_folder(to, model.named_tensors(), config->to_json("float32"));
  }
  const at::Tensor logits = model.logits(ids);
  write_outputs(model, logits,
                model.loss({ids}, targets, {.scale = input.read("scale").item<double>()}), folder);
}

// Images f32 [batch, channels, height, width], targets int64 [batch].
TEST(ImageExchange, LossLogitsAndGradients) {
  const char* const given = std::getenv("COMPACT_EXCHANGE");
  if (!given) GTEST_SKIP() << "run by tests/models/*.py";
  const std::filesystem::path folder = given;
  const SafetensorsFile input(folder / "input.safetensors");
  const at::Tensor images = input.read("images"), targets = input.read("targets");
  const std::unique_ptr<ModelConfig> config = read_model(folder, ModelUse::kImages);
  const std::unique_ptr<Network> network =
      config->build(Policy::preset(std::getenv("COMPACT_EXCHANGE_PRESET")), {});
  auto& model = dynamic_cast<Classifier&>(*network);
  read_weights(model, folder);
  if (const std::string to = std::getenv("COMPACT_EXCHANGE_MODEL"); !to.empty()) {
    write_model_folder(to, model.named_tensors(), config->to_json("float32"));
  }
  at::Tensor logits;
  {
    const at::NoGradGuard no_grad;
    logits = model.logits({images}, {.training = false});
  }
  const Pass pass{.scale = input.read("scale").item<double>(), .training = false};
  write_outputs(model, logits, model.loss({images}, targets, pass), folder);
}

}  // namespace
}  // namespace compact
