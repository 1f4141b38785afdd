// SPDX-License-Identifier: Apache-2.0
// Tokens that are looked for in the text itself, before anything splits it: special ones such as
// [MASK] or <|endoftext|>, and words that were added to a vocabulary. As `added_tokens` of Hugging
// Face's tokenizer.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/data/tokenizers/byte_trie.h"

namespace compact {

struct AddedToken {
  std::string content;
  uint32_t id = 0;
  bool special = true;                  // gives no text when decoded
  bool normalized = false;              // looked for after normalisation, and normalised itself
  bool single_word = false;             // not inside of a word
  bool lstrip = false, rstrip = false;  // takes the white space before it, after it

  bool operator==(const AddedToken&) const = default;
  // Whether it begins or ends with a letter, a digit or a character that is not ASCII.
  bool touches_letters() const;
};

// Finds the tokens of one kind: those looked for before normalisation, or after.
class AddedTokenFinder {
 public:
  // `content` as it is looked for. Throws InputError beginning with `where` on a second token of
  // the same content.
  void add(const AddedToken& token, std::string_view content, const std::string& where);

  // The longest token at the leftmost place, and so on. Calls, in the order of the text, `rest`
  // with what lies between tokens and `found` with the id of each.
  void split(std::string_view text, FunctionRef<void(std::string_view)> rest,
             FunctionRef<void(uint32_t)> found) const;

 private:
  ByteTrie trie_;
  std::vector<AddedToken> tokens_;
  bool starts_[256] = {};  // bytes that a token starts with
};

// Whether a text may be cut before a single space between two words, as far as these tokens go.
bool can_cut_before_space(const std::vector<AddedToken>& tokens);

}  // namespace compact
