// SPDX-License-Identifier: Apache-2.0
// The tokenizer.json files of LLaMA 2, Gemma, Phi-3 and others whose BPE came from SentencePiece:
// spaces are written as U+2581, words are not split, and a character that is not a token is its
// bytes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace compact {

struct Metaspace {
  // The mark before a text, or before the part that follows an added token.
  enum class Prefix {
    kNone,
    kFirst,   // a mark where the text begins, unless there is one
    kEach,    // a mark before each part, unless there is one
    kAlways,  // a mark before each part
  };
  Prefix prefix = Prefix::kNone;
  bool strips = false;  // decoding takes a space from the start of the text

  // As a normalizer makes it, before added tokens that are looked for in normalized text.
  std::string normalized(std::string_view text) const;
  // The text to merge; `first`: `part` is at the beginning of the text.
  std::string word(std::string_view part, bool first) const;
  // Tokens put together.
  std::string decoded(std::span<const std::string* const> tokens) const;
};

// The settings of normalizer, pre_tokenizer and decoder, where the decoder is of this kind. Throws
// InputError, beginning with `where`, on settings that are not supported here.
std::optional<Metaspace> read_metaspace(const nlohmann::json& root, const std::string& where);

}  // namespace compact
