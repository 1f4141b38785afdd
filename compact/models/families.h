// SPDX-License-Identifier: Apache-2.0
// The table of model families, and what is found in it: models by the name that --model takes or by
// their config.json.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compact/models/model_config.h"

namespace compact {

// The kind of a model's inputs, and of its predictions for them.
enum class ModelUse : uint8_t { kTokens, kSequences, kImages, kNodes, kGraphs };
const char* name_of(ModelUse use);  // "next tokens", "classes of sequences", ...

struct ModelInfo {
  std::string name, summary;
  std::shared_ptr<const ModelConfig> config;
};

struct FamilyInfo {
  std::string name;
  // Each model_type of config.json with what models of it are for.
  std::vector<std::pair<std::string, ModelUse>> types;
  // Models that --model may name, for each of these uses.
  std::vector<ModelInfo> models;
  // Throws InputError, beginning with `where`, on what is missing, wrong or not computed here.
  std::unique_ptr<ModelConfig> (*read)(const nlohmann::json& config, std::string_view where);
  // For models of images: the processor that transformers has for these types.
  const char* image_processor = "ViTImageProcessor";

  bool is_for(ModelUse use) const;
};
// The models that --model may name, from a family's table of names, summaries and configurations.
template <class Config, class Table>
std::vector<ModelInfo> models_of(const Table& table) {
  std::vector<ModelInfo> all;
  for (const auto& row : table) {
    all.push_back({row.name, row.summary, std::make_shared<const Config>(row.config)});
  }
  return all;
}

// The table.
std::span<const FamilyInfo* const> families();

// Throws InputError where no family has such a model for this use, with a suggestion.
const ModelInfo& model_named(std::string_view name, ModelUse use);

// The use of the model of a config.json. Throws InputError, beginning with `where`, on a
// model_type that is in no family.
ModelUse use_of(const nlohmann::json& config, std::string_view where);
// The model of a config.json (`path`, or in that folder). Throws InputError where it is for another
// use, or as its family does.
std::unique_ptr<ModelConfig> read_model(const std::filesystem::path& path, ModelUse use);

}  // namespace compact
