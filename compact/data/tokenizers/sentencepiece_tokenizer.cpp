// SPDX-License-Identifier: Apache-2.0
// `sentencepiece:file=PATH`: a SentencePiece model, through its own library. Special tokens (<s>,
// </s>, <unk> and others like them) and those that the folder adds are looked for in a text first,
// as `transformers` does.
#include <sentencepiece_processor.h>
#include <xxhash.h>

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/data/files/byte_source.h"
#include "compact/data/files/utf8.h"
#include "compact/data/tokenizers/cluster_rules.h"
#include "compact/data/tokenizers/sentencepiece_json.h"
#include "compact/data/tokenizers/sentencepiece_model.h"
#include "compact/data/tokenizers/tokenizer.h"
#include "compact/data/tokenizers/tokenizer_files.h"

namespace compact {
namespace {

constexpr int64_t kLargestModel = int64_t{1} << 28;
const char* const kPrefixes[] = {"none", "first", "each", "always"};  // as Metaspace::Prefix

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // `prefix`: a name of kPrefixes, "" for what the folder says.
  SentencePieceTokenizer(const std::string& path, const std::string& prefix) : path_(path) {
    COMPACT_CHECK(input_size(path) <= kLargestModel, path,
                  ": a SentencePiece model must be at most ", kLargestModel, " bytes, has ",
                  input_size(path));
    files_.read(path, kName);
    const bool usual = load(prefix);
    COMPACT_CHECK(processor_.GetPieceSize() > 0, path, ": has an empty vocabulary");
    const SentencePieceSettings settings = sentencepiece_settings(files_[kName], path);
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      COMPACT_CHECK(repaired_utf8(processor_.IdToPiece(id)) == processor_.IdToPiece(id), path,
                    ": piece ", id, " must be UTF-8");
      vocabulary_.add(processor_.IdToPiece(id), static_cast<uint32_t>(id), path);
      if (processor_.IsControl(id) || processor_.IsUnknown(id)) {
        added_.push_back({processor_.IdToPiece(id), static_cast<uint32_t>(id)});
      }
      // The package `tokenizers` finds these in a text that spells them, where it looks pieces up.
      if (processor_.IsByte(id) && (settings.model_type == 1 || !settings.whole.empty())) {
        added_.push_back({processor_.IdToPiece(id), static_cast<uint32_t>(id), false});
      }
    }
    // The changes by the files beside.
    std::string beside = usual ? "" : " prefix=" + name_of_prefix();
    for (const AddedToken& token : files_.roles().add_to(vocabulary_, added_, path)) {
      beside += cat(" ", token.id, "=", token.content);
    }
    special_.resize(static_cast<size_t>(vocabulary()));
    for (const AddedToken& token : added_) {
      finder_.add(token, token.content, path);
      special_[token.id] = token.special;
    }
    stops_ = files_.roles().stops(vocabulary_);
    const auto end = files_.roles().end(vocabulary_, added_);
    const int own = processor_.eos_id();
    COMPACT_CHECK(end || own >= 0, path, ": needs an end-of-sentence piece (</s>)");
    end_ = end ? *end : static_cast<uint32_t>(own);
    if (end && static_cast<int64_t>(*end) != own) beside += cat(" end=", *end);
    hash_ = hash_of(beside);
    const std::string* const begin = files_.roles().token("bos_token");
    const auto id = begin ? vocabulary_.find(*begin) : std::nullopt;
    const auto adds = files_.roles().adds_begin();
    if (adds || files_.roles().tokenizer_class().language_model) {
      format_ = SequenceFormat{{}, {}, {}, end_, false};
      if (id && adds.value_or(false)) format_->begin = format_->middle = {*id};
    }
    cut_ = find_cut();
  }

  std::vector<uint32_t> encode(std::string_view text) const override {
    std::vector<uint32_t> tokens;
    const std::string repaired = repaired_utf8(text);
    finder_.split(
        repaired,
        [&](std::string_view rest) {
          std::vector<int> ids;
          const bool marked = rest.starts_with(' ') || rest.starts_with(kMarkOfSpace);
          const bool first = rest.data() == repaired.data();
          const bool bare = bare_ && (marked || (prefix_ == Prefix::kFirst && !first));
          const auto status = (bare ? *bare_ : processor_).Encode(rules_->applied(rest), &ids);
          COMPACT_CHECK(status.ok(), path_, ": cannot encode: ", status.message());
          tokens.insert(tokens.end(), ids.begin(), ids.end());
        },
        [&](uint32_t id) { tokens.push_back(id); });
    return tokens;
  }

  std::string decode(std::span<const uint32_t> tokens) const override {
    std::string text;
    std::vector<int> ids;
    const auto flush = [&] {
      std::string part;
      const auto status = processor_.Decode(ids, &part);
      COMPACT_CHECK(status.ok(), path_, ": cannot decode: ", status.message());
      text += part;
      ids.clear();
    };
    for (const uint32_t token : tokens) {
      COMPACT_CHECK(token < static_cast<uint64_t>(vocabulary()), path_,
                    ": a token id must be below ", vocabulary(), ", is ", token);
      if (special_[token]) continue;
      if (static_cast<int64_t>(token) < processor_.GetPieceSize()) {
        ids.push_back(static_cast<int>(token));
      } else {
        flush();
        text += *vocabulary_.token(token);
      }
    }
    flush();
    return text;
  }

  int64_t vocabulary() const override { return vocabulary_.size(); }
  uint32_t end_of_text() const override { return end_; }
  std::vector<uint32_t> ends() const override {
    std::vector<uint32_t> all = stops_;
    all.push_back(end_);
    return all;
  }
  std::vector<std::string> warnings() const override {
    return files_.roles().warnings(vocabulary_, added_, end_);
  }
  Cut cut() const override { return cut_; }
  std::string spec() const override { return spec_of(path_).str(); }
  uint64_t hash() const override { return hash_; }
  std::map<std::string, std::string> files() const override {
    std::map<std::string, std::string> files = files_.all();
    const SentencePieceSettings settings = sentencepiece_settings(files_[kName], path_);
    // `tokenizers` knows no pieces that are words or characters, nor spaces after words.
    if (settings.model_type > 2 || settings.space_after) return files;
    files["tokenizer.json"] = sentencepiece_json(
        processor_, settings, prefix_, added_, format_ ? format_->begin : std::vector<uint32_t>());
    return files;
  }
  std::map<std::string, std::string> config() const override {
    std::map<std::string, std::string> config;
    const auto name = [&](const char* role, int64_t id) {
      if (id < 0) return;
      config[role] = nlohmann::json(*vocabulary_.token(static_cast<uint32_t>(id))).dump();
    };
    // An ordinary piece is not named: `transformers` would look for it in texts.
    const bool added = std::ranges::find(added_, end_, &AddedToken::id) != added_.end();
    if (added || static_cast<int64_t>(end_) == processor_.eos_id()) name("eos_token", end_);
    name("bos_token", processor_.bos_id());
    name("unk_token", processor_.unk_id());
    name("pad_token", processor_.pad_id());
    return config;
  }
  std::optional<SequenceFormat> sequence_format() const override { return format_; }
  Spec spec_in(const std::string& folder) const override { return spec_of(folder + kName); }

 private:
  using Prefix = Metaspace::Prefix;
  static constexpr const char* kName = "tokenizer.model";
  static constexpr std::string_view kMarkOfSpace = "\u2581";

  Spec spec_of(const std::string& path) const {
    Spec spec{"sentencepiece", {{"file", path}}};
    if (named_prefix_) spec.set("prefix", name_of_prefix());
    return spec;
  }
  std::string name_of_prefix() const { return kPrefixes[static_cast<int>(prefix_)]; }

  uint64_t hash_of(const std::string& beside) const {
    XXH3_state_t* const state = XXH3_createState();
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, "sentencepiece 2", 15);
    XXH3_64bits_update(state, beside.data(), beside.size());
    XXH3_64bits_update(state, files_[kName].data(), files_[kName].size());
    const uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
  }

  // Returns whether the prefix of texts is the model's own.
  bool load(const std::string& name) {
    check_sentencepiece_model(files_[kName], path_);
    const SentencePieceSettings settings = sentencepiece_settings(files_[kName], path_);
    rules_.emplace(settings.rules);
    const bool bare = settings.model_type == 2 && settings.byte_fallback &&
                      settings.rules.empty() && !settings.squeezes_spaces &&
                      settings.marks_spaces && !settings.space_after && settings.whole.empty();
    const Prefix own = settings.prefix ? Prefix::kAlways : Prefix::kNone;
    const auto known = std::ranges::find(kPrefixes, name);
    COMPACT_CHECK(name.empty() || known != std::end(kPrefixes), path_,
                  ": prefix must be none, first, each or always, is `", name, "`");
    prefix_ = name.empty() ? sentencepiece_prefix(files_.roles().tokenizer_class(), settings.prefix,
                                                  bare, path_)
                           : static_cast<Prefix>(known - std::begin(kPrefixes));
    named_prefix_ = prefix_ != own;
    load_into(processor_, prefix_ != Prefix::kNone);
    if (prefix_ == Prefix::kFirst || prefix_ == Prefix::kEach) {
      bare_.emplace();
      load_into(*bare_, false);
    }
    return !named_prefix_;
  }

  void load_into(sentencepiece::SentencePieceProcessor& processor, bool prefix) {
    const std::string error = load_error(processor, prefix);
    COMPACT_CHECK(error.empty(), path_, ": must be a SentencePiece model: ", error);
  }

  // The library's error for the file; empty: it can read it. The library throws on some files.
  std::string load_error(sentencepiece::SentencePieceProcessor& processor, bool prefix) try {
    const auto status =
        processor.LoadFromSerializedProto(without_rules(files_[kName], prefix, path_));
    return status.ok() ? std::string() : cat(status.message());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return cat(e.what());
  }

  // How a model treats spaces is in its settings, which the library does not show: so try it out.
  Cut find_cut() const {
    // A cut beside an added token would take the space that belongs to what stands before it.
    if (std::ranges::any_of(added_, &AddedToken::touches_letters)) return Cut::kNowhere;
    if (!can_cut_before_space(added_)) return Cut::kNowhere;
    const auto joined = [&](const char* second) {
      std::vector<uint32_t> tokens = encode("to be,");
      const std::vector<uint32_t> more = encode(second);
      tokens.insert(tokens.end(), more.begin(), more.end());
      return tokens;
    };
    const std::vector<uint32_t> whole = encode("to be, or not");
    if (joined("or not") == whole) return Cut::kAtSpace;
    if (joined(" or not") == whole) return Cut::kBeforeSpace;
    return Cut::kNowhere;
  }

  std::string path_;
  TokenizerFiles files_;
  std::optional<ClusterRules> rules_;
  sentencepiece::SentencePieceProcessor processor_;  // without the rules
  // Puts nothing before a text; for models that put a mark before some parts only.
  std::optional<sentencepiece::SentencePieceProcessor> bare_;
  Prefix prefix_ = Prefix::kAlways;
  bool named_prefix_ = false;  // the model itself has another
  Vocabulary vocabulary_;
  std::vector<AddedToken> added_;
  AddedTokenFinder finder_;
  std::vector<bool> special_;  // by id: gives no text
  std::vector<uint32_t> stops_;
  uint32_t end_ = 0;
  std::optional<SequenceFormat> format_;
  uint64_t hash_ = 0;
  Cut cut_ = Cut::kNowhere;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const Spec& spec) {
  spec.allow({"file", "prefix"});
  COMPACT_CHECK(!spec.text("file", "").empty(), "`sentencepiece` needs file=PATH, got `",
                spec.str(), "`");
  return std::make_unique<SentencePieceTokenizer>(spec.text("file", ""), spec.text("prefix", ""));
}

}  // namespace compact
