// SPDX-License-Identifier: Apache-2.0
// `bpe:file=PATH` and `bpe:vocab=PATH,merges=PATH`: byte-level BPE as GPT-2 has it, or the BPE that
// SentencePiece trains, from a tokenizer.json or from GPT-2's pair of files. The tokens are those
// of Hugging Face's `tokenizers`.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/data/files/printable.h"
#include "compact/data/files/utf8.h"
#include "compact/data/tokenizers/added_tokens.h"
#include "compact/data/tokenizers/bpe_files.h"
#include "compact/data/tokenizers/byte_alphabet.h"
#include "compact/data/tokenizers/nfc.h"
#include "compact/data/tokenizers/pool.h"
#include "compact/data/tokenizers/tokenizer.h"
#include "compact/data/tokenizers/tokenizer_files.h"

namespace compact {
namespace {

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(const Spec& spec) : spec_(spec), from_json_(spec.has("file")) {
    if (from_json_) {
      path_ = spec.text("file", "");
      files_.read(path_, "tokenizer.json");
      parts_ = read_bpe_json(files_["tokenizer.json"], files_.roles(), path_);
    } else {
      path_ = spec.text("vocab", "");
      files_.read(path_, "vocab.json");
      files_.read(spec.text("merges", ""), "merges.txt");
      parts_ = read_bpe_pair(files_["vocab.json"], path_, files_["merges.txt"],
                             spec.text("merges", ""), files_.roles());
    }
    hash_ = files_.hash("bpe" + parts_.beside);
    special_.resize(static_cast<size_t>(vocabulary()));
    for (const AddedToken& token : parts_.added) {
      if (token.special) special_[token.id] = true;
      if (token.normalized) {
        second_.add(token, normalized(token.content), path_);
      } else {
        first_.add(token, token.content, path_);
      }
    }
    if (std::ranges::find(parts_.added, parts_.end_of_text, &AddedToken::id) !=
        parts_.added.end()) {
      special_[parts_.end_of_text] = true;
    }
  }

  std::vector<uint32_t> encode(std::string_view text) const override {
    const std::string repaired = repaired_utf8(text);
    const auto tools = tools_.borrow([&] {
      auto made = std::make_unique<Tools>();
      if (parts_.splitter) made->splitter.push_back(parts_.splitter->clone());
      return made;
    });
    std::vector<uint32_t> tokens;
    tokens.reserve(text.size() / 3);
    const auto found = [&](uint32_t id) { tokens.push_back(id); };
    const auto word = [&](std::string_view bytes) {
      parts_.model->encode(bytes, tools->scratch, tokens);
    };
    first_.split(
        repaired,
        [&](std::string_view rest) {
          const std::string normal = normalized(rest);
          second_.split(
              normal,
              [&](std::string_view part) {
                if (!parts_.metaspace) return tools->splitter[0].split(part, word);
                const bool starts = rest.data() == repaired.data() && part.data() == normal.data();
                word(parts_.metaspace->word(part, starts));
              },
              found);
        },
        found);
    return tokens;
  }

  std::string decode(std::span<const uint32_t> tokens) const override {
    std::string bytes;
    std::vector<const std::string*> texts;
    for (const uint32_t id : tokens) {
      COMPACT_CHECK(id < static_cast<uint64_t>(vocabulary()), path_, ": a token id must be below ",
                    vocabulary(), ", is ", id);
      if (special_[id]) continue;
      const std::string& token = *parts_.vocabulary.token(id);
      if (parts_.metaspace) {
        texts.push_back(&token);
        continue;
      }
      bytes += alphabet_bytes(token).value_or(token);
    }
    return parts_.metaspace ? parts_.metaspace->decoded(texts) : repaired_utf8(bytes);
  }

  int64_t vocabulary() const override { return parts_.vocabulary.size(); }
  uint32_t end_of_text() const override { return parts_.end_of_text; }
  std::vector<uint32_t> ends() const override {
    std::vector<uint32_t> all = parts_.stops;
    all.push_back(parts_.end_of_text);
    return all;
  }
  std::vector<std::string> warnings() const override {
    return files_.roles().warnings(parts_.vocabulary, parts_.added, parts_.end_of_text);
  }
  Cut cut() const override {
    const bool space = parts_.cut == Cut::kAtSpace;  // which may not be beside an added token
    const bool may = can_cut_before_space(parts_.added) &&
                     (!space || std::ranges::none_of(parts_.added, &AddedToken::touches_letters));
    return may ? parts_.cut : Cut::kNowhere;
  }
  std::string spec() const override { return spec_.str(); }
  uint64_t hash() const override { return hash_; }
  std::map<std::string, std::string> files() const override {
    std::map<std::string, std::string> files = files_.all();
    if (!parts_.json.empty()) files["tokenizer.json"] = parts_.json;
    return files;
  }
  bool is_qwen2() const override { return parts_.composes && parts_.splitter->is_qwen2(); }
  Spec spec_in(const std::string& folder) const override {
    if (from_json_) return {"bpe", {{"file", folder + "tokenizer.json"}}};
    return {"bpe", {{"vocab", folder + "vocab.json"}, {"merges", folder + "merges.txt"}}};
  }
  std::map<std::string, std::string> config() const override {
    std::map<std::string, std::string> config;
    if (special_[parts_.end_of_text]) {  // an ordinary one `transformers` would look for in texts
      config["eos_token"] = nlohmann::json(*parts_.vocabulary.token(parts_.end_of_text)).dump();
    }
    if (parts_.format) {
      config["pad_token"] = nlohmann::json(*parts_.vocabulary.token(parts_.format->pad)).dump();
    }
    return config;
  }
  std::optional<SequenceFormat> sequence_format() const override { return parts_.format; }

 private:
  struct Tools {
    std::vector<WordSplitter> splitter;  // one, or none
    ByteBpe::Scratch scratch;
  };

  std::string normalized(std::string_view text) const {
    if (parts_.metaspace) return parts_.metaspace->normalized(text);
    return parts_.composes ? nfc(text) : std::string(text);
  }

  Spec spec_;
  bool from_json_;
  std::string path_;
  TokenizerFiles files_;
  uint64_t hash_ = 0;
  BpeParts parts_;
  AddedTokenFinder first_, second_;  // looked for in this order
  std::vector<bool> special_;        // by id: gives no text
  mutable Pool<Tools> tools_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(const Spec& spec) {
  spec.allow({"file", "vocab", "merges"});
  const auto given = [&](const char* key) { return !spec.text(key, "").empty(); };
  COMPACT_CHECK(
      given("file") ? !given("vocab") && !given("merges") : given("vocab") && given("merges"),
      "`bpe` needs file=PATH, or vocab=PATH and merges=PATH, got `", spec.str(), "`");
  return std::make_unique<BpeTokenizer>(spec);
}

}  // namespace compact
