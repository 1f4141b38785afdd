// SPDX-License-Identifier: Apache-2.0
#include "compact/io/model_weights.h"

#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/io/json_file.h"

namespace compact {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWholeModelFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Tensor name -> shard's file name. Shards must lie beside the index: a path could lead anywhere.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const nlohmann::json index = read_json(path);
  COMPACT_CHECK(index.is_object() && index.contains("weight_map") &&
                    index["weight_map"].is_object() && !index["weight_map"].empty(),
                path.string(), ": must have an object `weight_map` with tensors");
  std::map<std::string, std::string> map;
  for (const auto& [name, file] : index["weight_map"].items()) {
    COMPACT_CHECK(file.is_string(), path.string(), ": weight_map of `", name,
                  "` must be a file name, is ", file.dump());
    const std::string text = file.get<std::string>();
    COMPACT_CHECK(text.ends_with(".safetensors") && text.find('/') == std::string::npos &&
                      text.find('\0') == std::string::npos,
                  path.string(), ": weight_map of `", name,
                  "` must be the name of a .safetensors file in the same folder, is `", text, "`");
    map[name] = text;
  }
  return map;
}

}  // namespace

ModelWeights::ModelWeights(const fs::path& path) : path_(path) {
  if (!is_folder(path) || is_file(path / kWholeModelFile)) {
    const fs::path file = is_folder(path) ? path / kWholeModelFile : path;
    const SafetensorsFile& shard =
        shards_.try_emplace(file.filename().string(), file).first->second;
    for (const TensorEntry& entry : shard.entries()) {
      names_.push_back(entry.name);
      shard_of_[entry.name] = &shard;
    }
    return;
  }
  COMPACT_CHECK(is_file(path / kIndexFile), path.string(), ": must have ", kWholeModelFile, " or ",
                kIndexFile);
  for (const auto& [name, file] : read_index(path / kIndexFile)) {
    const SafetensorsFile& shard = shards_.try_emplace(file, path / file).first->second;
    COMPACT_CHECK(shard.contains(name), shard.path().string(), ": must hold tensor `", name,
                  "`, which ", kIndexFile, " places here");
    shard_of_[name] = &shard;
  }
  for (const auto& [file, shard] : shards_) {
    for (const TensorEntry& entry : shard.entries()) {
      const auto found = shard_of_.find(entry.name);
      if (found != shard_of_.end() && found->second == &shard) names_.push_back(entry.name);
    }
  }
}

void ModelWeights::verify() const {
  for (const auto& [file, shard] : shards_) shard.verify();
}

const SafetensorsFile& ModelWeights::shard(std::string_view name) const {
  const auto found = shard_of_.find(name);
  COMPACT_CHECK(found != shard_of_.end(), path_.string(), ": has no tensor `", name, "`",
                suggestion(name, names_));
  return *found->second;
}

void write_model_folder(const fs::path& folder, const NamedTensors& model,
                        const nlohmann::json& config) {
  write_json(folder / "config.json", config);
  write_safetensors(folder / kWholeModelFile, model, kModelMetadata);
}

}  // namespace compact
