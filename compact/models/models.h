// SPDX-License-Identifier: Apache-2.0
// The table of models by name.
#pragma once

#include <span>
#include <string>

#include "compact/base/llama_config.h"

namespace compact {

struct ModelInfo {
  std::string name, summary;
  LlamaConfig config;
};
std::span<const ModelInfo> models();
// Throws InputError with a suggestion on an unknown name.
const ModelInfo& model_named(const std::string& name);

}  // namespace compact
