// SPDX-License-Identifier: Apache-2.0
// Text as BERT's tokenizer sees it: control characters removed, white space made spaces, ideographs
// set apart, accents removed, lower case. As the BertNormalizer of Hugging Face's `tokenizers`.
#pragma once

#include <string>
#include <string_view>

namespace compact {

struct BertNormalizer {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;

  // `text` must be well-formed UTF-8; so is the result.
  std::string operator()(std::string_view text) const;
};

}  // namespace compact
