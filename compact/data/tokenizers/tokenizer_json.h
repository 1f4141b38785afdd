// SPDX-License-Identifier: Apache-2.0
// The parts of a Hugging Face tokenizer.json that tokenizers of all models share. A feature that is
// not supported here is an InputError that names it.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compact/data/tokenizers/added_tokens.h"
#include "compact/data/tokenizers/token_roles.h"
#include "compact/data/tokenizers/tokenizer.h"
#include "compact/data/tokenizers/vocabulary.h"

namespace compact {

// Parses a tokenizer.json and checks that its model is of that type.
nlohmann::json parse_tokenizer_json(std::string_view text, const std::string& where,
                                    std::string_view model_type);
// The type of the model of the tokenizer.json at `path`.
std::string tokenizer_json_type(const std::string& path);

// The type of the component at `key` ("normalizer", ...), empty where there is none (or null).
std::string component_type(const nlohmann::json& object, const char* key, const std::string& where);
// Throws where `object` has a key that is none of `known`.
void allow_keys(const nlohmann::json& object, std::initializer_list<std::string_view> known,
                const std::string& where);
// The value of `key`; `fallback` where it is missing or null.
bool json_flag(const nlohmann::json& object, const char* key, bool fallback,
               const std::string& where);
std::string json_string(const nlohmann::json& object, const char* key, std::string_view fallback,
                        const std::string& where);

// `added_tokens`. Those that `vocabulary` lacks are put into it, with the ids they ask for; an id
// other than Hugging Face's library would give is refused.
std::vector<AddedToken> read_added_tokens(const nlohmann::json& root, Vocabulary& vocabulary,
                                          const std::string& where);

// The tokens that `post_processor` (BertProcessing, RobertaProcessing or TemplateProcessing, also
// in a Sequence) puts around sentences; nullopt where it does anything but put ids before, between
// and after them. `pad` is left 0.
std::optional<SequenceFormat> read_sequence_format(const nlohmann::json& root,
                                                   const Vocabulary& vocabulary,
                                                   const std::string& where);

// The id that fills up a batch: pad_token's, else of `padding`, else [PAD] or <pad>, else
// `fallback`.
uint32_t read_pad(const nlohmann::json& root, const TokenRoles& roles, const Vocabulary& vocabulary,
                  uint32_t fallback, const std::string& where);

// `added_tokens` of a tokenizer.json, in the order of their ids.
nlohmann::json json_of(std::vector<AddedToken> tokens);

}  // namespace compact
