// SPDX-License-Identifier: Apache-2.0
// The table of decoders of LLaMA's kind by name.
#pragma once

#include <span>
#include <string>

#include "compact/models/llama/config.h"

namespace compact {

struct LlamaInfo {
  std::string name, summary;
  LlamaConfig config;
};
std::span<const LlamaInfo> llamas();

}  // namespace compact
