// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "compact/data/tokenizers/added_tokens.h"
#include "compact/data/tokenizers/metaspace.h"
#include "compact/data/tokenizers/sentencepiece_model.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace compact {

// A SentencePiece model, unigram or BPE, as a tokenizer.json for Hugging Face's package
// `tokenizers`, with what is looked for in a text before it, what is
// put before its parts (`prefix`), and the ids that `begin` a text.
std::string sentencepiece_json(const sentencepiece::SentencePieceProcessor& model,
                               const SentencePieceSettings& settings, Metaspace::Prefix prefix,
                               const std::vector<AddedToken>& added,
                               const std::vector<uint32_t>& begin);

}  // namespace compact
