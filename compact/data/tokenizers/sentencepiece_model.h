// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace compact {

// Throws InputError, which begins with `path`, unless every rule table (precompiled_charsmap) of a
// serialized SentencePiece model can be walked with any text. SentencePiece's library follows the
// positions that such a table holds without looking where they lead.
void check_sentencepiece_model(std::string_view model, const std::string& path);

// The settings of a model beside its pieces; the defaults hold for settings that it lacks.
struct SentencePieceSettings {
  uint64_t model_type = 1;         // unigram; 2 is BPE
  bool space_after = false;        // the mark of a space ends a word, and does not begin it
  bool byte_fallback = false;      // what is unknown becomes its bytes
  std::string_view rules;          // of normalization (precompiled_charsmap)
  bool prefix = true;              // a space is put before every text
  bool squeezes_spaces = true;     // spaces around a text fall away, of several one stays
  bool marks_spaces = true;        // a space becomes U+2581
  std::vector<std::string> whole;  // pieces that are taken wherever they stand (user-defined)
};
// The same errors.
SentencePieceSettings sentencepiece_settings(std::string_view model, const std::string& path);

// The same model without its rules of normalization, and without samples that the library tries;
// `prefix`: whether it puts a space before every text.
std::string without_rules(std::string_view model, bool prefix, const std::string& path);

}  // namespace compact
