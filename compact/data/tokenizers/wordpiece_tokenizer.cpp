// SPDX-License-Identifier: Apache-2.0
// `wordpiece:file=PATH`: BERT's tokenizer from its vocab.txt or from a tokenizer.json. The tokens
// are those of Hugging Face's `tokenizers`.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/printable.h"
#include "compact/data/files/utf8.h"
#include "compact/data/tokenizers/added_tokens.h"
#include "compact/data/tokenizers/bert_normalizer.h"
#include "compact/data/tokenizers/hf_characters.h"
#include "compact/data/tokenizers/tokenizer.h"
#include "compact/data/tokenizers/tokenizer_files.h"
#include "compact/data/tokenizers/tokenizer_json.h"

namespace compact {
namespace {

using nlohmann::json;

const char* const kSpecial[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
const char* const kRoles[] = {"pad_token", "unk_token", "cls_token", "sep_token", "mask_token"};

// Joins English words as the decoder of that library does: on each token, with its space.
std::string cleaned(std::string token) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) {
    for (size_t at = 0; (at = token.find(from, at)) != token.npos; at += to.size()) {
      token.replace(at, from.size(), to);
    }
  }
  return token;
}

class WordPieceTokenizer final : public Tokenizer {
 public:
  // `lowercase`: of a vocab.txt.
  WordPieceTokenizer(const std::string& path, bool from_json, bool lowercase)
      : path_(path), from_json_(from_json) {
    const char* const name = from_json ? "tokenizer.json" : "vocab.txt";
    files_.read(path, name);
    if (from_json) {
      read_json_file(parse_tokenizer_json(files_[name], path, "WordPiece"));
    } else {
      check_class(files_.roles().tokenizer_class(), {TokenizerClass::Kind::kBert}, path);
      read_lines(files_[name], lowercase);
    }
    std::string beside = rebuilt_;  // what the files beside change
    for (const AddedToken& token : files_.roles().add_to(vocabulary_, added_, path)) {
      beside += cat(" ", token.id, "=", token.content);
    }
    hash_ = files_.hash(cat("wordpiece lowercase=", lowercase, beside));
    COMPACT_CHECK(vocabulary_.find(unknown_token_), path, ": needs its token for unknown words, `",
                  printable(unknown_token_), "`, in the vocabulary");
    unknown_ = *vocabulary_.find(unknown_token_);
    const auto end = vocabulary_.find("[SEP]");
    COMPACT_CHECK(end || (format_ && !format_->end.empty()), path,
                  ": needs the token [SEP], which ends a text");
    end_of_text_ = end ? *end : format_->end.back();
    continued_ = pieces_.node(prefix_);
    special_.resize(static_cast<size_t>(vocabulary_.size()));
    for (const AddedToken& token : added_) {
      if (token.special) special_[token.id] = true;
      if (token.normalized) {
        std::string content = normalize_ ? normalizer_(token.content) : token.content;
        after_.add(token, content, path);
        decoded_[token.id] = std::move(content);
      } else {
        before_.add(token, token.content, path);
      }
    }
    special_[end_of_text_] = true;
  }

  std::vector<uint32_t> encode(std::string_view text) const override {
    const std::string repaired = repaired_utf8(text);
    std::vector<uint32_t> tokens;
    tokens.reserve(text.size() / 4);
    const auto found = [&](uint32_t id) { tokens.push_back(id); };
    before_.split(
        repaired,
        [&](std::string_view rest) {
          const std::string normalized = normalize_ ? normalizer_(rest) : std::string(rest);
          after_.split(
              normalized, [&](std::string_view part) { split_words(part, tokens); }, found);
        },
        found);
    return tokens;
  }

  std::string decode(std::span<const uint32_t> tokens) const override {
    std::string text;
    bool first = true;
    for (const uint32_t id : tokens) {
      COMPACT_CHECK(id < static_cast<uint64_t>(vocabulary()), path_, ": a token id must be below ",
                    vocabulary(), ", is ", id);
      const auto normalized = decoded_.find(id);
      const std::string& token =
          normalized == decoded_.end() ? *vocabulary_.token(id) : normalized->second;
      if (special_[id] || token.empty()) continue;
      std::string part = token;
      if (!first) {
        const bool joins = decoder_ && token.starts_with(decoder_prefix_);
        part = joins ? token.substr(decoder_prefix_.size()) : " " + token;
      }
      text += decoder_ && cleanup_ ? cleaned(std::move(part)) : part;
      first = false;
    }
    return text;
  }

  int64_t vocabulary() const override { return vocabulary_.size(); }
  uint32_t end_of_text() const override { return end_of_text_; }
  // A space always ends a word: the text after it can be tokenized without the text before it.
  Cut cut() const override {
    return can_cut_before_space(added_) ? Cut::kBeforeSpace : Cut::kNowhere;
  }
  std::string spec() const override { return spec_of(path_).str(); }
  uint64_t hash() const override { return hash_; }
  std::map<std::string, std::string> files() const override {
    std::map<std::string, std::string> files = files_.all();
    if (!from_json_) files["tokenizer.json"] = json_of_lines();
    if (!rebuilt_.empty()) files["tokenizer.json"] = rebuilt_json_;
    return files;
  }
  Spec spec_in(const std::string& folder) const override {
    return spec_of(folder + (from_json_ ? "tokenizer.json" : "vocab.txt"));
  }
  std::map<std::string, std::string> config() const override {
    std::map<std::string, std::string> config;
    if (!from_json_) config["do_lower_case"] = normalizer_.lowercase ? "true" : "false";
    for (size_t i = 0; i < std::size(kSpecial); ++i) {
      if (vocabulary_.find(kSpecial[i])) config[kRoles[i]] = cat('"', kSpecial[i], '"');
    }
    return config;
  }
  std::optional<SequenceFormat> sequence_format() const override { return format_; }

 private:
  Spec spec_of(const std::string& path) const {
    Spec spec{"wordpiece", {}};
    if (!from_json_ && !normalizer_.lowercase) spec.set("lowercase", "false");
    spec.set("file", path);
    return spec;
  }

  void read_lines(const std::string& text, bool lowercase) {
    vocabulary_ = Vocabulary::from_lines(text, path_);
    lines_ = vocabulary_.size();
    take_pieces();
    normalizer_ = {true, true, lowercase, lowercase};
    for (const char* const name : kSpecial) {
      if (const auto id = vocabulary_.find(name)) added_.push_back({name, *id});
    }
    const auto cls = vocabulary_.find("[CLS]"), sep = vocabulary_.find("[SEP]");
    if (!cls || !sep) return;
    const auto pad = vocabulary_.find("[PAD]");
    format_ = SequenceFormat{{*cls}, {*sep}, {*sep}, pad ? *pad : *sep, true};
  }

  // A tokenizer.json of the same tokenizer as the vocab.txt.
  std::string json_of_lines() const {
    json vocabulary;
    for (uint32_t id = 0; id < vocabulary_.size(); ++id) {
      const std::string& token = *vocabulary_.token(id);
      if (!token.empty() && id < lines_) vocabulary[token] = id;
    }
    json processor;
    if (format_) {
      processor = {{"type", "BertProcessing"},
                   {"sep", {"[SEP]", format_->end[0]}},
                   {"cls", {"[CLS]", format_->begin[0]}}};
    }
    return json{{"version", "1.0"},
                {"truncation", nullptr},
                {"padding", nullptr},
                {"added_tokens", json_of(added_)},
                {"normalizer",
                 {{"type", "BertNormalizer"},
                  {"clean_text", normalizer_.clean_text},
                  {"handle_chinese_chars", normalizer_.handle_chinese_chars},
                  {"strip_accents", normalizer_.strip_accents},
                  {"lowercase", normalizer_.lowercase}}},
                {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                {"post_processor", processor},
                {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
                {"model",
                 {{"type", "WordPiece"},
                  {"unk_token", unknown_token_},
                  {"continuing_subword_prefix", prefix_},
                  {"max_input_chars_per_word", longest_word_},
                  {"vocab", vocabulary}}}}
        .dump();
  }

  void read_json_file(json root) {
    rebuilt_ = rebuild_tokenizer_json(root, files_.roles(), path_);
    if (!rebuilt_.empty()) rebuilt_json_ = root.dump();
    const json& model = root["model"];
    const std::string at = path_ + ": model";
    allow_keys(
        model,
        {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"},
        at);
    COMPACT_CHECK(model.contains("vocab"), at, ": needs `vocab`");
    vocabulary_ = Vocabulary::from_json(model["vocab"], at + ".vocab");
    take_pieces();
    unknown_token_ = json_string(model, "unk_token", "[UNK]", at);
    prefix_ = json_string(model, "continuing_subword_prefix", "##", at);
    if (const auto most = model.find("max_input_chars_per_word"); most != model.end()) {
      COMPACT_CHECK(most->is_number_unsigned(), at,
                    ": max_input_chars_per_word must be a whole number");
      longest_word_ = most->get<uint64_t>();
    }
    const std::string normalizer = component_type(root, "normalizer", path_);
    COMPACT_CHECK(normalizer.empty() || normalizer == "BertNormalizer", path_, ": normalizer ",
                  printable(normalizer), " is not known here; known: BertNormalizer");
    normalize_ = !normalizer.empty();
    if (normalize_) {
      const json& n = root["normalizer"];
      const std::string where = path_ + ": normalizer";
      allow_keys(n, {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"},
                 where);
      normalizer_.clean_text = json_flag(n, "clean_text", true, where);
      normalizer_.handle_chinese_chars = json_flag(n, "handle_chinese_chars", true, where);
      normalizer_.lowercase = json_flag(n, "lowercase", true, where);
      normalizer_.strip_accents = json_flag(n, "strip_accents", normalizer_.lowercase, where);
    }
    const std::string words = component_type(root, "pre_tokenizer", path_);
    COMPACT_CHECK(words == "BertPreTokenizer", path_, ": pre_tokenizer ",
                  words.empty() ? "null" : printable(words),
                  " is not known here; known: BertPreTokenizer");
    const std::string decoder = component_type(root, "decoder", path_);
    COMPACT_CHECK(decoder.empty() || decoder == "WordPiece", path_, ": decoder ",
                  printable(decoder), " is not known here; known: WordPiece");
    decoder_ = !decoder.empty();
    if (decoder_) {
      decoder_prefix_ = json_string(root["decoder"], "prefix", "##", path_ + ": decoder");
      cleanup_ = json_flag(root["decoder"], "cleanup", true, path_ + ": decoder");
    }
    added_ = read_added_tokens(root, vocabulary_, path_);
    format_ = read_sequence_format(root, vocabulary_, path_);
    if (!format_) return;
    const auto sep = vocabulary_.find("[SEP]");
    format_->pad = read_pad(root, files_.roles(), vocabulary_, sep ? *sep : 0, path_);
  }

  // Takes the model's own tokens; added ones are found in the text before it is split into words.
  void take_pieces() {
    for (uint32_t id = 0; id < vocabulary_.size(); ++id) {
      const std::string& token = *vocabulary_.token(id);
      if (!token.empty()) pieces_.add(token, id);
    }
  }

  // White space falls away, punctuation stands alone.
  void split_words(std::string_view text, std::vector<uint32_t>& tokens) const {
    size_t begin = 0, characters = 0;
    for (size_t i = 0; i < text.size();) {
      const size_t at = i;
      const char32_t c = next_character(text, i);
      const bool space = c == ' ' || is_space(c);
      if (!space && !is_bert_punctuation(c)) {
        ++characters;
        continue;
      }
      if (at > begin) add_word(text.substr(begin, at - begin), characters, tokens);
      if (!space) add_word(text.substr(at, i - at), 1, tokens);
      begin = i;
      characters = 0;
    }
    if (begin < text.size()) add_word(text.substr(begin), characters, tokens);
  }

  // The longest piece that the word starts with, then the longest that continues it, and so on.
  void add_word(std::string_view word, size_t characters, std::vector<uint32_t>& tokens) const {
    const size_t before = tokens.size();
    bool known = characters <= longest_word_;
    for (size_t at = 0; known && at < word.size();) {
      const uint32_t from = at == 0 ? ByteTrie::kRoot : continued_;
      const auto match =
          from == ByteTrie::kNone ? std::nullopt : pieces_.longest(word.substr(at), from);
      known = match.has_value();
      if (!known) break;
      tokens.push_back(match->value);
      at += match->length;
    }
    if (known) return;
    tokens.resize(before);
    tokens.push_back(unknown_);
  }

  std::string path_;
  bool from_json_;
  TokenizerFiles files_;
  // The changes that transformers makes to the file, and the changed file.
  std::string rebuilt_, rebuilt_json_;
  uint64_t hash_ = 0;
  Vocabulary vocabulary_;
  int64_t lines_ = 0;  // of a vocab.txt
  std::string unknown_token_ = "[UNK]", prefix_ = "##", decoder_prefix_ = "##";
  uint64_t longest_word_ = 100;  // in characters
  bool normalize_ = true, decoder_ = true, cleanup_ = true;
  BertNormalizer normalizer_;
  std::vector<AddedToken> added_;
  AddedTokenFinder before_, after_;  // normalisation
  ByteTrie pieces_;
  uint32_t continued_ = ByteTrie::kNone;  // the node of prefix_
  uint32_t unknown_ = 0, end_of_text_ = 0;
  std::vector<bool> special_;                // by id: gives no text
  std::map<uint32_t, std::string> decoded_;  // added tokens that come back normalised
  std::optional<SequenceFormat> format_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_wordpiece_tokenizer(const Spec& spec) {
  spec.allow({"file", "lowercase"});
  const std::string path = spec.text("file", "");
  COMPACT_CHECK(!path.empty(), "`wordpiece` needs file=PATH, got `", spec.str(), "`");
  const bool from_json = path.ends_with(".json");
  COMPACT_CHECK(!from_json || !spec.has("lowercase"), "`", spec.str(),
                "`: lowercase is for a vocab.txt, a tokenizer.json says it itself");
  return std::make_unique<WordPieceTokenizer>(path, from_json, spec.flag("lowercase", true));
}

}  // namespace compact
