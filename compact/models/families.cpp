// SPDX-License-Identifier: Apache-2.0
#include "compact/models/families.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/io/json_file.h"
#include "compact/models/image_processor.h"

namespace compact {

extern const FamilyInfo llama_family, gemma_family, gpt2_family, encoder_family, resnet_family,
    vit_family, graph_family;

namespace {

struct FoundType {
  const FamilyInfo* family;
  ModelUse use;
};

FoundType type_of(const nlohmann::json& config, std::string_view where) {
  const bool named =
      config.is_object() && config.contains("model_type") && config["model_type"].is_string();
  const std::string type = named ? config["model_type"].get<std::string>() : "";
  std::string known;
  for (const FamilyInfo* f : families()) {
    for (const auto& [name, use] : f->types) {
      if (name == type) return {f, use};
      known += (known.empty() ? "" : ", ") + name;
    }
  }
  COMPACT_CHECK(named, where, ": model_type must be given, as a text");
  fail(where, ": model_type is `", type, "`; known: ", known);
}

}  // namespace

std::span<const FamilyInfo* const> families() {
  static const FamilyInfo* const all[] = {&llama_family,   &gemma_family,  &gpt2_family,
                                          &encoder_family, &resnet_family, &vit_family,
                                          &graph_family};
  return all;
}

const char* name_of(ModelUse use) {
  static constexpr const char* kNames[] = {"next tokens", "classes of sequences",
                                           "classes of images", "classes of nodes",
                                           "classes of graphs"};
  return kNames[static_cast<int>(use)];
}

bool FamilyInfo::is_for(ModelUse use) const {
  return std::ranges::any_of(types, [&](const auto& type) { return type.second == use; });
}

const ModelInfo& model_named(std::string_view name, ModelUse use) {
  std::vector<std::string> names;
  for (const FamilyInfo* f : families()) {
    for (const ModelInfo& m : f->models) {
      if (f->is_for(use)) {
        if (m.name == name) return m;
        names.push_back(m.name);
      } else {
        COMPACT_CHECK(m.name != name, "model `", name, "` is for ", name_of(f->types[0].second),
                      ", not for ", name_of(use));
      }
    }
  }
  fail("no model `", name, "`", suggestion(name, names));
}

ModelUse use_of(const nlohmann::json& config, std::string_view where) {
  return type_of(config, where).use;
}

std::unique_ptr<ModelConfig> read_model(const std::filesystem::path& path, ModelUse use) {
  const std::filesystem::path file = is_folder(path) ? path / "config.json" : path;
  const nlohmann::json config = read_json(file);
  const FoundType found = type_of(config, file.string());
  std::string known;
  for (const FamilyInfo* f : families()) {
    for (const auto& [name, of] : f->types) {
      if (of == use) known += (known.empty() ? "" : ", ") + name;
    }
  }
  COMPACT_CHECK(found.use == use, file.string(), ": model_type `",
                config["model_type"].get<std::string>(), "` is for ", name_of(found.use),
                ", not for ", name_of(use), "; for these are ", known);
  std::unique_ptr<ModelConfig> model = found.family->read(config, file.string());
  if (use == ModelUse::kImages) {
    fit_to_processor(*model, config, file.parent_path(), found.family->image_processor);
  }
  return model;
}

}  // namespace compact
