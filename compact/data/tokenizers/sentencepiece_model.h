// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace compact {

// Throws InputError, which begins with `path`, unless every rule table (precompiled_charsmap) of a
// serialized SentencePiece model can be walked with any text. SentencePiece's library follows the
// positions that such a table holds without looking where they lead.
void check_sentencepiece_model(std::string_view model, const std::string& path);

// Whether its pieces are merged in pairs (BPE), not chosen by probability (unigram), which is what
// a model says that says nothing. The same errors.
bool sentencepiece_merges(std::string_view model, const std::string& path);

}  // namespace compact
