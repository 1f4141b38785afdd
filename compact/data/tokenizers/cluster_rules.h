// SPDX-License-Identifier: Apache-2.0
// A SentencePiece model's rules of normalization as Hugging Face's package `tokenizers` applies
// them (its normalizer Precompiled), so that a model that is trained here reads the same text
// there: a cluster of characters of fewer than six bytes is replaced whole by the shortest rule
// that it begins with, of others each character. SentencePiece's own library takes the longest rule
// at each place; the two differ where a letter has several marks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace compact {

class ClusterRules {
 public:
  // `rules`: a precompiled_charsmap that check_sentencepiece_model has seen; may be empty.
  explicit ClusterRules(std::string_view rules);

  // `text` is well-formed UTF-8.
  std::string applied(std::string_view text) const;

 private:
  void apply(std::string_view cluster, std::string& out) const;
  // The replacement of the shortest rule that `text` begins with; nullptr where there is none.
  const char* replacement(std::string_view text) const;

  std::vector<uint32_t> units_;  // as in sentencepiece_model.cpp
  std::string replacements_;     // each with a zero after it
};

}  // namespace compact
