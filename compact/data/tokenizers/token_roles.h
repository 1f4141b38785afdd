// SPDX-License-Identifier: Apache-2.0
// The roles of tokens that a Hugging Face folder states beside the tokenizer's own file: which ends
// a text, which begins one, which were added. Training, prompts, generation and written folders use
// them. Files are asked in the order of transformers 5: tokenizer_config.json, overridden by
// special_tokens_map.json where it has no `added_tokens_decoder`; for the ids at which a generation
// stops, generation_config.json, or else config.json.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compact/data/tokenizers/added_tokens.h"
#include "compact/data/tokenizers/tokenizer_class.h"
#include "compact/data/tokenizers/vocabulary.h"

namespace compact {

class TokenRoles {
 public:
  TokenRoles() = default;
  // `text_of` gives what a file of the folder holds, "" where it is missing. Throws InputError,
  // beginning with `folder`, on what is not of the form that transformers reads.
  TokenRoles(const std::function<std::string(const char*)>& text_of, const std::string& folder);

  // The text of the token with a role, as `eos_token`; nullptr where none has it.
  const std::string* token(const char* role) const;
  // Whether the folder says of a role which token has it, or that none has.
  bool says(const std::string& role) const { return named_.contains(role); }
  // Whether tokenizer_config.json lists all tokens that are added (added_tokens_decoder), and
  // whether the folder lists or names one.
  bool has_decoder() const { return has_decoder_; }
  bool lists(const std::string& content) const;
  // Whether a text begins with bos_token where the tokenizer has no tokenizer.json to say so.
  std::optional<bool> adds_begin() const { return adds_begin_; }

  // The class as which transformers reads a tokenizer.json in the folder.
  const TokenizerClass& tokenizer_class() const { return class_; }

  // Adds the tokens of the other files to `vocabulary`, and those that are looked for in texts to
  // `added`, as a tokenizer.json's own; returns those added or changed. The way in which a listed
  // token is looked for overrides that of tokenizer.json. A token that only fills up batches, is
  // not in the vocabulary and would be the last is left out.
  std::vector<AddedToken> add_to(Vocabulary& vocabulary, std::vector<AddedToken>& added,
                                 const std::string& where) const;

  // The ids at which a generation stops, of those that `vocabulary` has.
  std::vector<uint32_t> stops(const Vocabulary& vocabulary) const;
  // The token that a model learns to end a text with: eos_token where a generation stops there,
  // else the first of the stops that is a special token of `added`, else the first; eos_token, if
  // any, where the folder does not say.
  std::optional<uint32_t> end(const Vocabulary& vocabulary,
                              const std::vector<AddedToken>& added) const;
  // A line for each id of the stops that `vocabulary` lacks, one where `end` is no token of
  // `added`, so that it is found in texts, too, and one where a text ends but no generation.
  std::vector<std::string> warnings(const Vocabulary& vocabulary,
                                    const std::vector<AddedToken>& added, uint32_t end) const;

 private:
  std::map<std::string, AddedToken> named_;  // without content: no token
  std::map<int64_t, AddedToken> numbered_;   // by the id that a file gives
  std::vector<AddedToken> extra_;
  std::vector<int64_t> stops_;
  std::string stops_file_;   // where the stops are said
  std::string never_stops_;  // where transformers finds none
  std::optional<bool> adds_begin_;
  bool has_decoder_ = false;
  TokenizerClass class_;
};

}  // namespace compact
