// SPDX-License-Identifier: Apache-2.0
// Classes of characters as the libraries see them that Hugging Face's tokenizers are built on. Each
// follows its own version of Unicode, none that of ICU: the regular expressions 16.0, the standard
// library of Rust 17.0, the categories of BertNormalizer and BertPreTokenizer 8.0, and
// normalisation 9.0. tests/data/tokenizers.py compares every code point.
#pragma once

#include <string>
#include <string_view>

namespace compact {

// The code point at text[i] of well-formed UTF-8; moves i past it.
char32_t next_character(std::string_view text, size_t& i);
void append_character(std::string& text, char32_t c);

bool is_space(char32_t c);      // White_Space
bool is_numeric(char32_t c);    // Nd, Nl, No: the pre-tokenizer Digits
bool is_word_part(char32_t c);  // \w: what may not stand beside an added token with single_word

bool is_bert_other(char32_t c);        // Cc, Cf, Co
bool is_bert_mark(char32_t c);         // Mn
bool is_bert_punctuation(char32_t c);  // P, and the ASCII symbols
char32_t lower_case(char32_t c);       // but for U+0130, which becomes two

// Canonical decomposition and order.
std::u32string_view decomposed(char32_t c, char32_t (&buffer)[8]);
int combining_class(char32_t c);

// \p{L} and \p{N} of `pattern` with the letters and numbers that are newer than ICU.
std::string with_new_characters(std::string_view pattern);

}  // namespace compact
