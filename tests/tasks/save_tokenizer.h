// SPDX-License-Identifier: Apache-2.0
// A tokenizer in a folder, as a run leaves it.
#pragma once

#include "compact/tasks/tokenizer_store.h"
#include "tests/temporary_folder.h"

namespace compact {

inline void save_tokenizer(const std::filesystem::path& folder, const Tokenizer& tokenizer) {
  for (const auto& [name, text] : tokenizer_files(tokenizer)) spill(folder / name, text);
}

}  // namespace compact
