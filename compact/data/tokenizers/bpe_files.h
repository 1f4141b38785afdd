// SPDX-License-Identifier: Apache-2.0
// The parts of a BPE tokenizer, read from its files. A violated rule, or a feature that is not
// supported here, is an InputError that names it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compact/data/tokenizers/added_tokens.h"
#include "compact/data/tokenizers/byte_bpe.h"
#include "compact/data/tokenizers/metaspace.h"
#include "compact/data/tokenizers/token_roles.h"
#include "compact/data/tokenizers/tokenizer.h"
#include "compact/data/tokenizers/vocabulary.h"
#include "compact/data/tokenizers/word_splitter.h"

namespace compact {

struct BpeParts {
  Vocabulary vocabulary;
  std::vector<AddedToken> added;
  bool composes = false;               // text is brought into form NFC
  std::optional<Metaspace> metaspace;  // of such a file, which has no splitter
  std::unique_ptr<WordSplitter> splitter;
  Cut cut = Cut::kNowhere;  // as far as words go
  std::unique_ptr<ByteBpe> model;
  // The folder's choice (TokenRoles); else the first of <|endoftext|>, <|end_of_text|>, </s>,
  // <eos>, <|eot_id|>, <|im_end|> that is a special added token; else the only special one.
  uint32_t end_of_text = 0;
  std::vector<uint32_t> stops;  // where the folder says that a generation stops
  std::string beside;           // what the files beside change, for the hash; "": nothing
  std::optional<SequenceFormat> format;
  std::string json;  // a tokenizer.json of a pair, and of a file that transformers reads otherwise
};

// A tokenizer.json; `where` begins every error.
BpeParts read_bpe_json(std::string_view text, const TokenRoles& roles, const std::string& where);

// vocab.json and merges.txt as GPT-2 has them. Where the vocabulary has <s> and </s> it is
// RoBERTa's: then its special tokens are <s>, <pad>, </s>, <unk> and <mask>, else <|endoftext|>.
BpeParts read_bpe_pair(std::string_view vocab, const std::string& vocab_where,
                       std::string_view merges, const std::string& merges_where,
                       const TokenRoles& roles);

}  // namespace compact
