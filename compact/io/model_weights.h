// SPDX-License-Identifier: Apache-2.0
// The weights of a Hugging Face model folder: `model.safetensors`, or the shards that
// `model.safetensors.index.json` names.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compact/io/safetensors.h"

namespace compact {

class ModelWeights {
 public:
  // A folder, or one safetensors file. Opens every shard and checks that each holds what the index
  // says; tensors that the index does not name are not seen. InputError names the file and rule.
  explicit ModelWeights(const std::filesystem::path& path);

  // Throws InputError, naming the file, where one does not have the checksum that it states.
  void verify() const;

  const std::filesystem::path& path() const { return path_; }
  // In the order of the files' bytes, shard after shard.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const { return shard_of_.count(name) != 0; }
  const TensorEntry& entry(std::string_view name) const { return shard(name).entry(name); }
  at::Tensor read(std::string_view name) const { return shard(name).read(name); }
  void read_into(std::string_view name, at::Tensor& to, Cast cast = Cast::kRefuse) const {
    shard(name).read_into(name, to, cast);
  }
  bool holds(std::string_view name, const at::Tensor& values) const {
    return shard(name).holds(name, values);
  }

 private:
  const SafetensorsFile& shard(std::string_view name) const;

  std::filesystem::path path_;
  std::vector<std::string> names_;
  std::map<std::string, SafetensorsFile> shards_;
  std::map<std::string, const SafetensorsFile*, std::less<>> shard_of_;
};

// Writes config.json, then model.safetensors with its checksum into an existing folder, each
// atomically: where the weights are, the model is whole.
void write_model_folder(const std::filesystem::path& folder, const NamedTensors& model,
                        const nlohmann::json& config);

}  // namespace compact
