// SPDX-License-Identifier: Apache-2.0
// A folder of LoRA's adapters as peft writes it: adapter_config.json and adapter_model.safetensors,
// with A [rank, in] and B [out, rank] of each module that they are added to.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compact/io/safetensors.h"

namespace compact {

inline constexpr const char* kAdapterFile = "adapter_model.safetensors";
inline constexpr const char* kAdapterConfig = "adapter_config.json";
// Before the name of a module in the file.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

class AdapterFolder {
 public:
  // Throws InputError, naming the file and the rule, on what is not LoRA, on a file with a wrong
  // checksum and on settings or tensors that add() would not add.
  explicit AdapterFolder(const std::filesystem::path& folder);

  // The folder of the model that they were trained with; empty: unknown.
  const std::string& base() const { return base_; }
  // Adds scale B A to the matrix of this name ("...q_proj.weight") where there is an adapter of it;
  // the sum is made in f32 and rounded once.
  void add(const std::string& name, const at::Tensor& weight);
  // Throws InputError where a module's adapter was added to no matrix.
  void check_all_added() const;
  // Throws InputError where config.json of the model, read from `where`, says that it has them
  // already: they would be added twice.
  void refuse_merged(const nlohmann::json& config, const std::string& where) const;
  // Says so in config.json of the model that they were added to.
  void mark_merged(nlohmann::json& config) const;

 private:
  SafetensorsFile file_;
  std::string base_;
  double alpha_ = 1;
  bool rslora_ = false, transposed_ = false;
  std::map<std::string, bool> added_;  // modules
};

// Into an existing folder, each atomically.
void write_adapter_folder(const std::filesystem::path& folder, const NamedTensors& adapters,
                          const nlohmann::json& config);

}  // namespace compact
