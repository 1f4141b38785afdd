// SPDX-License-Identifier: Apache-2.0
// The class by which AutoTokenizer of transformers 5 reads a folder. Most read a tokenizer.json as
// it is; some take vocabulary and merges alone and make the rest of it from tokenizer_config.json,
// whatever the file says.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "compact/data/tokenizers/metaspace.h"

namespace compact {

class TokenRoles;

struct TokenizerClass {
  enum class Kind {
    kBackend,  // reads the file as it is
    kBert,
    kGpt2,
    kGptNeoX,
    kRoberta,
    kQwen2,
    kGemma,
    kLlama,
    kOther  // makes a tokenizer that is not known here
  };
  Kind kind = Kind::kBackend;
  std::string name;                     // in transformers
  bool fixed = false, by_type = false;  // as NamedClass
  bool lowercase = true, chinese_characters = true;
  std::optional<bool> strip_accents, prefix_space, legacy;
  bool language_model = false;  // the folder has one
};

// The class of a folder whose files are these, {} where missing. A folder
// that a run here wrote is read as it is. `where` begins errors.
TokenizerClass tokenizer_class_of(const nlohmann::json& tokenizer_config,
                                  const nlohmann::json& model, const std::string& where);

// Throws InputError unless the class reads files as they are or is of a `known` kind.
void check_class(const TokenizerClass& of, std::initializer_list<TokenizerClass::Kind> known,
                 const std::string& where);

// The mark before texts of a SentencePiece model. `own`: the model puts one there; `bare`: its
// pieces and merges describe it fully. Throws InputError where the class would make another
// tokenizer of it.
Metaspace::Prefix sentencepiece_prefix(const TokenizerClass& of, bool own, bool bare,
                                       const std::string& where);

// Turns a tokenizer.json, parsed by parse_tokenizer_json, into what the folder's class makes of it;
// returns the changes that affect tokens, "" for none. Throws InputError where the class makes a
// model of another type, takes tokens that the vocabulary lacks, or is not known here.
std::string rebuild_tokenizer_json(nlohmann::json& root, const TokenRoles& roles,
                                   const std::string& where);

}  // namespace compact
