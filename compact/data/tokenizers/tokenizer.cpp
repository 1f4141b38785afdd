// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/tokenizer.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {

std::span<const TokenizerEntry> tokenizers() {
  static constexpr TokenizerEntry kTable[] = {
      {"bytes", "bytes", "256 bytes and end of text: vocabulary 257, any file",
       make_bytes_tokenizer},
      {"sentencepiece", "sentencepiece:file=PATH",
       "a SentencePiece model (T5, LLaMA 2 and others); end of text is its </s>",
       make_sentencepiece_tokenizer},
      {"wordpiece", "wordpiece:file=PATH[,lowercase=false]",
       "a vocab.txt or tokenizer.json as BERT has them", make_wordpiece_tokenizer},
      {"bpe", "bpe:file=PATH | bpe:vocab=PATH,merges=PATH",
       "BPE: a tokenizer.json (GPT-2, RoBERTa, LLaMA, Gemma, Phi-3) or GPT-2's pair of files",
       make_bpe_tokenizer},
      {"prepared", "prepared:file=DIR/prepared.json",
       "any tokenizer of transformers, of a folder that `python -m compact.prepare` wrote",
       make_prepared_tokenizer},
  };
  return kTable;
}

std::vector<uint32_t> with_begin(const std::vector<uint32_t>& begin, std::vector<uint32_t> ids) {
  const bool so = ids.size() >= begin.size() && std::equal(begin.begin(), begin.end(), ids.begin());
  if (!so) ids.insert(ids.begin(), begin.begin(), begin.end());
  return ids;
}

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view text) {
  return make_tokenizer(Spec::parse(text));
}

std::unique_ptr<Tokenizer> make_tokenizer(const Spec& spec, const std::string& where) {
  std::vector<std::string> names, usages;
  for (const TokenizerEntry& entry : tokenizers()) {
    if (spec.name == entry.name) return entry.make(spec);
    names.emplace_back(entry.name);
    usages.emplace_back(entry.usage);
  }
  const bool near = !nearest(spec.name, names).empty();
  fail(where, where.empty() ? "" : ": ", "no tokenizer `", spec.name, "`",
       suggestion(spec.name, near ? names : usages));
}

}  // namespace compact
