// SPDX-License-Identifier: Apache-2.0
// Cuts text into the words that byte-level BPE merges within: the pre-tokenizer ByteLevel of a
// tokenizer.json, alone or after Split and Digits in a Sequence.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/data/tokenizers/pattern.h"
#include "compact/data/tokenizers/tokenizer.h"

namespace compact {

// Copyable by clone(); one is for one thread at a time.
class WordSplitter {
 public:
  // From `pre_tokenizer`; throws InputError that names what is not known here.
  WordSplitter(const nlohmann::json& pre_tokenizer, const std::string& where);
  // GPT-2's.
  static WordSplitter gpt2();
  // The expression of Qwen 2's tokenizers.
  static const char* qwen2_expression();
  WordSplitter clone() const;

  // Calls `word` with each word of `text` (well-formed UTF-8), none empty. A word may lie outside
  // of `text`, and lives as long as the call.
  void split(std::string_view text, FunctionRef<void(std::string_view)> word);

  // Whether a cut before a single space between two words leaves the words as they are: known of
  // GPT-2's and LLaMA 3's expressions and those like them.
  bool can_cut_before_space() const;
  // Whether it is that of Qwen 2's tokenizers.
  bool is_qwen2() const;

 private:
  struct Stage {
    enum Kind { kPattern, kDigits, kPrefixSpace } kind;
    std::vector<Pattern> pattern;  // one, of kPattern
    bool keep_matches = true, keep_rest = true;
    bool individual_digits = false;
  };
  WordSplitter() = default;
  void add(const nlohmann::json& part, bool last, const std::string& where);
  void add_byte_level(bool add_prefix_space, bool use_regex, const std::string& where);
  void run(size_t stage, std::string_view text, FunctionRef<void(std::string_view)> word);

  std::vector<Stage> stages_;
};

}  // namespace compact
