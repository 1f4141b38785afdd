// SPDX-License-Identifier: Apache-2.0
// The files that a tokenizer in the formats of Hugging Face consists of, kept to be stored again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "compact/data/tokenizers/token_roles.h"

namespace compact {

class TokenizerFiles {
 public:
  // Reads `path` (at most 256 MiB, not empty; InputError) to be kept as `name`, and the files
  // beside it that say how `transformers` loads it: tokenizer_config.json, special_tokens_map.json,
  // added_tokens.json and chat_template.jinja.
  void read(const std::string& path, const std::string& name);
  // The roles of tokens by these files and by those of a model in the same folder.
  const TokenRoles& roles() const { return roles_; }

  const std::string& operator[](const std::string& name) const { return files_.at(name); }
  const std::map<std::string, std::string>& all() const { return files_; }
  // XXH3 of `kind` and of the names and bytes that read() was called with. `kind` must contain the
  // changes that the files beside make to the tokens.
  uint64_t hash(std::string_view kind) const;

 private:
  std::map<std::string, std::string> files_;
  TokenRoles roles_;
};

}  // namespace compact
