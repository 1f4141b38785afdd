// SPDX-License-Identifier: Apache-2.0
// A tokenizer in a folder, as a run leaves it.
#pragma once

#include <nlohmann/json.hpp>

#include "compact/tasks/tokenizer_store.h"
#include "tests/temporary_folder.h"

namespace compact {

inline void save_tokenizer(const std::filesystem::path& folder, const Tokenizer& tokenizer,
                           const nlohmann::json& config = nlohmann::json::object()) {
  for (const auto& [name, text] : tokenizer_files(tokenizer, config)) spill(folder / name, text);
}

}  // namespace compact
