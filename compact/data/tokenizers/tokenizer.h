// SPDX-License-Identifier: Apache-2.0
// Tokenizers: text to token ids and back, named by spec strings. A new tokenizer is one file and
// its row in the table of tokenizer.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compact/base/spec.h"

namespace compact {

// Where a text may be cut so that its parts, encoded one by one, give the tokens of the whole.
enum class Cut {
  kAnywhere,     // between any two bytes, and any bytes are allowed
  kBeforeSpace,  // before a single space between two words
  kAtSpace,      // between letters or digits, and the space falls away: the tokenizer puts it back
  kNowhere,
};

// The tokens around the sentences that a model reads: `begin` before the first, `middle` between
// the two of a pair, `end` after the last.
struct SequenceFormat {
  std::vector<uint32_t> begin, middle, end;
  uint32_t pad = 0;          // fills up a batch
  bool second_type = false;  // what follows `middle` has token type 1
};

// `ids` with `begin` before them, unless they begin so.
std::vector<uint32_t> with_begin(const std::vector<uint32_t>& begin, std::vector<uint32_t> ids);

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The tokens of `text`, without end of text. Where cut() is not kAnywhere, invalid UTF-8 becomes
  // U+FFFD first. Takes memory in proportion to `text`: StreamEncoder does not. Safe to call from
  // several threads at once.
  virtual std::vector<uint32_t> encode(std::string_view text) const = 0;
  // The text of `tokens`; end of text gives nothing, unless it is an ordinary piece of texts.
  // Throws InputError on an id >= vocabulary().
  virtual std::string decode(std::span<const uint32_t> tokens) const = 0;

  virtual int64_t vocabulary() const = 0;    // ids are 0 .. vocabulary() - 1
  virtual uint32_t end_of_text() const = 0;  // the id that ends a document
  // Every id that ends a text: that one, and where the folder says that a generation stops.
  virtual std::vector<uint32_t> ends() const { return {end_of_text()}; }
  // Warnings about them for a user who trains with the tokenizer, a line each.
  virtual std::vector<std::string> warnings() const { return {}; }
  virtual Cut cut() const = 0;
  // The spec from which make_tokenizer makes the same tokenizer.
  virtual std::string spec() const = 0;
  // XXH3 of the kind, the settings and the bytes of its files: equal hashes, equal tokens.
  virtual uint64_t hash() const = 0;
  // The files it consists of, by the names that Hugging Face folders give them (tokenizer.model;
  // tokenizer.json; vocab.txt; vocab.json and merges.txt), so that they can be stored beside a
  // trained model, and a tokenizer.json, from which the package `tokenizers` gives the same ids.
  virtual std::map<std::string, std::string> files() const { return {}; }
  // Whether files() are stored as they are, since they are a folder of transformers' own.
  virtual bool keeps_files() const { return false; }
  // Whether it does what Qwen2Tokenizer of `transformers` makes of its vocabulary and merges.
  virtual bool is_qwen2() const { return false; }
  // The spec of the same tokenizer whose files lie in `folder` (empty: here) under those names.
  virtual Spec spec_in(const std::string& folder) const { return Spec::parse(spec()); }
  // The tokenizer's keys in Hugging Face's tokenizer_config.json, with their values as JSON texts.
  virtual std::map<std::string, std::string> config() const { return {}; }
  // How sentences are put together for a model; nothing where that is not known.
  virtual std::optional<SequenceFormat> sequence_format() const { return {}; }
};

struct TokenizerEntry {
  const char* name;
  const char* usage;    // the spec
  const char* summary;  // one line
  std::unique_ptr<Tokenizer> (*make)(const Spec& spec);
};

// Every tokenizer there is.
std::span<const TokenizerEntry> tokenizers();

// A name of the table and its settings, such as `bytes` or `sentencepiece:file=PATH`. Throws
// InputError, with a suggestion, on an unknown name or setting, and on a file that is missing or
// holds no such model.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec);
// The same without the detour through text, since a folder's name may hold a comma. `where` begins
// the message on an unknown name.
std::unique_ptr<Tokenizer> make_tokenizer(const Spec& spec, const std::string& where = "");

// The makers that the table names.
std::unique_ptr<Tokenizer> make_bytes_tokenizer(const Spec& spec);
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const Spec& spec);
std::unique_ptr<Tokenizer> make_wordpiece_tokenizer(const Spec& spec);
std::unique_ptr<Tokenizer> make_bpe_tokenizer(const Spec& spec);
std::unique_ptr<Tokenizer> make_prepared_tokenizer(const Spec& spec);

}  // namespace compact
