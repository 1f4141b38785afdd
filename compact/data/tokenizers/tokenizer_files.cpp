// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/tokenizer_files.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "compact/base/check.h"
#include "compact/base/file.h"

namespace compact {
namespace {

constexpr int64_t kLargestFile = int64_t{256} << 20, kLargestConfig = int64_t{4} << 20;
const char* const kBeside[] = {"tokenizer_config.json", "special_tokens_map.json",
                               "added_tokens.json", "chat_template.jinja"};

}  // namespace

void TokenizerFiles::read(const std::string& path, const std::string& name) {
  COMPACT_CHECK(!is_folder(path), path, ": is a folder, must be a file");
  std::string& bytes = files_[name];
  bytes = read_text(path, kLargestFile);
  COMPACT_CHECK(!bytes.empty(), path, ": is empty");
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const auto text_of = [&](const char* beside) {
    return is_file(folder / beside) ? read_text(folder / beside, kLargestConfig) : std::string();
  };
  for (const char* const beside : kBeside) {
    if (!files_.contains(beside) && is_file(folder / beside)) files_[beside] = text_of(beside);
  }
  roles_ = TokenRoles(text_of, folder.empty() ? "." : folder.string());
}

uint64_t TokenizerFiles::hash(std::string_view kind) const {
  XXH3_state_t* const state = XXH3_createState();
  XXH3_64bits_reset(state);
  const auto add = [&](std::string_view text) {
    const uint64_t size = text.size();
    XXH3_64bits_update(state, &size, sizeof size);
    XXH3_64bits_update(state, text.data(), text.size());
  };
  add(kind);
  for (const auto& [name, bytes] : files_) {
    if (std::ranges::find(kBeside, name) != std::end(kBeside)) continue;
    add(name);
    add(bytes);
  }
  const uint64_t hash = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return hash;
}

}  // namespace compact
