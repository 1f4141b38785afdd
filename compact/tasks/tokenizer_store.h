// SPDX-License-Identifier: Apache-2.0
// Stores a tokenizer in the folder of a model: its files by the names of Hugging Face, and
// tokenizer_config.json with
//   {"compact_tokenizer": "sentencepiece:file=tokenizer.model"}
// and what `transformers` needs to load it, so that the folder needs nothing from outside.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compact/data/tokenizers/tokenizer.h"

namespace compact {

// The files, by name, that store a tokenizer beside the model of a config.json: Tokenizer::files(),
// and a tokenizer_config.json by which AutoTokenizer of transformers 5 gives the same ids. Where it
// would not, throws InputError with a remedy; with `warnings` adds that as a line instead.
std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer,
                                                   const nlohmann::json& config,
                                                   std::vector<std::string>* warnings = nullptr);

// The tokenizer of a model folder: the stored one, or a file of Hugging Face, in transformers'
// order: a tokenizer.json of BPE or WordPiece; a SentencePiece tokenizer.model; vocab.json with
// merges.txt; vocab.txt (lower case unless tokenizer_config.json says do_lower_case false). Throws
// InputError where there is none, or a file is not valid.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder);

// The tokenizer that --tokenizer names: a spec, or a folder of a tokenizer or of `python -m
// compact.prepare`.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& spec_or_folder);

}  // namespace compact
