// SPDX-License-Identifier: Apache-2.0
// Labelled texts as ids with their special tokens, cut to a length.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "compact/data/text/labelled_texts.h"
#include "compact/data/tokenizers/tokenizer.h"

namespace compact {

struct EncodedTexts {
  std::vector<std::vector<int32_t>> ids;
  std::vector<int64_t> second_begin;  // where token type 1 begins; the length where it does not
  std::vector<float> labels;          // as LabelledTexts has them
  int64_t cut = 0;                    // texts that lost tokens
};

// How many tokens of a pair are kept where at most `room` may be: those of `longest_first` in
// Hugging Face's package tokenizers. The longer text loses its end until both are equally long,
// then both do; of an odd rest the longer keeps one more, of equal ones the second.
std::pair<int64_t, int64_t> longest_first(int64_t first, int64_t second, int64_t room);

// begin first end, or begin first middle second end; what is beyond max_length tokens, special ones
// included, is cut from the ends of the texts. `encode` gives a text's tokens without special ones.
// Throws InputError where max_length leaves no room for a token of each text.
using EncodeText = std::function<std::vector<uint32_t>(std::string_view)>;
EncodedTexts encode_texts(const LabelledTexts& texts, const EncodeText& encode,
                          const SequenceFormat& format, int64_t max_length);

}  // namespace compact
