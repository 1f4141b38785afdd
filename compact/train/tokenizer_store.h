// SPDX-License-Identifier: Apache-2.0
// A tokenizer kept in the folder of the model that was trained with it: tokenizer_config.json with
//   {"compact_tokenizer": "sentencepiece:file=tokenizer.model"}
// and beside it the tokenizer's own model file, so that the folder needs nothing from outside.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "compact/data/tokenizer.h"

namespace compact {

// The files that keep a tokenizer, by name: tokenizer_config.json, tokenizer.model.
std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer);

// Writes tokenizer_config.json and, where the tokenizer has a model file, tokenizer.model into an
// existing folder, each atomically. Throws InputError where they cannot be written.
void save_tokenizer(const std::filesystem::path& folder, const Tokenizer& tokenizer);

// The tokenizer of a model folder: the stored one, or a SentencePiece tokenizer.model, as Hugging
// Face folders have it. Throws InputError where there is neither, or a file is not valid.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder);

}  // namespace compact
