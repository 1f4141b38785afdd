// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/bpe_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/printable.h"
#include "compact/data/files/utf8.h"
#include "compact/data/tokenizers/tokenizer_json.h"
#include "compact/json/json.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr int64_t kLargestVocabulary = int64_t{256} << 20;
const char* const kEnds[] = {"<|endoftext|>", "<|end_of_text|>", "</s>",
                             "<eos>",         "<|eot_id|>",      "<|im_end|>"};

// "left right"
ByteBpe::Merge merge_of(std::string_view line, const std::string& where, size_t number) {
  const size_t space = line.find(' ');
  COMPACT_CHECK(space != line.npos && line.find(' ', space + 1) == line.npos, where, ": merge ",
                number, " must be two tokens with one space between, is `", printable(line), "`");
  return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

std::vector<ByteBpe::Merge> merges_of(const json& list, const std::string& where) {
  COMPACT_CHECK(list.is_array(), where, " must be a list");
  std::vector<ByteBpe::Merge> merges;
  merges.reserve(list.size());
  for (const json& merge : list) {
    // One form for all, as in Hugging Face's library.
    COMPACT_CHECK(merge.type() == list[0].type(), where, ": merge ", merges.size() + 1,
                  " must be of the same form as the first");
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      if (!text.starts_with("#version")) merges.push_back(merge_of(text, where, merges.size() + 1));
      continue;
    }
    COMPACT_CHECK(
        merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(),
        where, ": merge ", merges.size() + 1, " must be \"left right\" or two strings");
    merges.emplace_back(merge[0], merge[1]);
  }
  return merges;
}

std::vector<ByteBpe::Merge> merges_of_lines(std::string_view text, const std::string& where) {
  std::vector<ByteBpe::Merge> merges;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with("#version")) merges.push_back(merge_of(line, where, merges.size() + 1));
    at = end + 1;
  }
  return merges;
}

// The end of text by the tokenizer's own file.
std::optional<uint32_t> own_end(const std::vector<AddedToken>& added) {
  for (const char* const name : kEnds) {
    for (const AddedToken& token : added) {
      if (token.special && token.content == name) return token.id;
    }
  }
  const auto special = [](const AddedToken& token) { return token.special; };
  if (std::count_if(added.begin(), added.end(), special) != 1) return {};
  return std::find_if(added.begin(), added.end(), special)->id;
}

// Adds what the other files say to parts whose own tokens are known.
void take_roles(const TokenRoles& roles, BpeParts& parts, const std::string& where) {
  const std::optional<uint32_t> own = own_end(parts.added);
  for (const AddedToken& token : roles.add_to(parts.vocabulary, parts.added, where)) {
    parts.beside += cat(token.id, "=", token.content, token.special, token.normalized, token.lstrip,
                        token.rstrip, token.single_word, ";");
  }
  parts.stops = roles.stops(parts.vocabulary);
  const std::optional<uint32_t> end = roles.end(parts.vocabulary, parts.added);
  COMPACT_CHECK(end || own, where,
                ": needs a special added token that ends a text: <|endoftext|>, <|end_of_text|>, "
                "</s>, <eos>, <|eot_id|> or <|im_end|>, or eos_token in a tokenizer_config.json");
  parts.end_of_text = end ? *end : *own;
  if (end && end != own) parts.beside += cat("end=", *end);
}

// Refuses other settings of a model, and values that change what is computed.
void refuse_others(const json& model, const std::string& where) {
  allow_keys(model,
             {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
              "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"},
             where);
  const auto dropout = model.find("dropout");
  COMPACT_CHECK(dropout == model.end() || dropout->is_null() || *dropout == 0, where,
                ": dropout is not known here");
  for (const char* const key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    COMPACT_CHECK(json_string(model, key, "", where).empty(), where, ": ", key,
                  " is not known here, must be empty");
  }
}

// Where a text may be cut whose spaces are U+2581: before one, if no token joins it to what comes
// before.
Cut cut_of(const Metaspace& metaspace, const Vocabulary& vocabulary) {
  const std::string_view mark = "\u2581";
  if (!vocabulary.find(mark)) return Cut::kNowhere;
  for (int64_t id = 0; id < vocabulary.size(); ++id) {
    const std::string& token = *vocabulary.token(static_cast<uint32_t>(id));
    const size_t word = token.find_first_not_of(mark);
    if (word != token.npos && token.find(mark, word) != token.npos) return Cut::kNowhere;
  }
  return metaspace.prefix == Metaspace::Prefix::kAlways ? Cut::kAtSpace : Cut::kBeforeSpace;
}

// Normalizer, pre_tokenizer and decoder of byte-level BPE.
void read_byte_level(const json& root, BpeParts& parts, const std::string& where) {
  const std::string normalizer = component_type(root, "normalizer", where);
  parts.composes = normalizer == "NFC";
  if (parts.composes) allow_keys(root["normalizer"], {"type"}, where + ": normalizer");
  COMPACT_CHECK(normalizer.empty() || parts.composes ||
                    (normalizer == "Sequence" &&
                     root["normalizer"].value("normalizers", json::array({1})).empty()),
                where, ": normalizer ", printable(normalizer),
                " is not known here, must be NFC or null");
  COMPACT_CHECK(component_type(root, "decoder", where) == "ByteLevel", where,
                ": decoder must be ByteLevel, or begin with Replace of U+2581");
  const auto words = root.find("pre_tokenizer");
  parts.splitter =
      std::make_unique<WordSplitter>(words == root.end() ? json(nullptr) : *words, where);
  if (parts.splitter->can_cut_before_space()) parts.cut = Cut::kBeforeSpace;
}

}  // namespace

BpeParts read_bpe_json(std::string_view text, const TokenRoles& roles, const std::string& where) {
  json root = parse_tokenizer_json(text, where, "BPE");
  const std::string rebuilt = rebuild_tokenizer_json(root, roles, where);
  const json& model = root["model"];
  const std::string at = where + ": model";
  refuse_others(model, at);
  COMPACT_CHECK(model.contains("vocab") && model.contains("merges"), at,
                " needs `vocab` and `merges`");
  BpeParts parts;
  parts.metaspace = read_metaspace(root, where);
  BpeSettings settings;
  settings.characters = parts.metaspace.has_value();
  settings.byte_fallback = json_flag(model, "byte_fallback", false, at);
  if (!parts.metaspace) {
    COMPACT_CHECK(!settings.byte_fallback, at,
                  ": byte_fallback is not known here beside a decoder ",
                  "of another kind than Replace of U+2581");
    read_byte_level(root, parts, where);
  }
  parts.vocabulary = Vocabulary::from_json(model["vocab"], at + ".vocab");
  if (parts.metaspace) parts.cut = cut_of(*parts.metaspace, parts.vocabulary);
  settings.fuse_unknown = json_flag(model, "fuse_unk", false, at);
  settings.ignore_merges = json_flag(model, "ignore_merges", false, at);
  if (const std::string unknown = json_string(model, "unk_token", "", at); !unknown.empty()) {
    settings.unknown = parts.vocabulary.find(unknown);
    COMPACT_CHECK(settings.unknown, at, ": unk_token `", printable(unknown),
                  "` must be in the vocabulary");
  }
  parts.model = std::make_unique<ByteBpe>(parts.vocabulary,
                                          merges_of(model["merges"], at + ".merges"), settings, at);
  parts.added = read_added_tokens(root, parts.vocabulary, where);
  take_roles(roles, parts, where);
  parts.format = read_sequence_format(root, parts.vocabulary, where);
  if (parts.format) {
    parts.format->pad = read_pad(root, roles, parts.vocabulary, parts.end_of_text, where);
  }
  parts.beside += rebuilt;
  if (!rebuilt.empty()) parts.json = root.dump();
  return parts;
}

BpeParts read_bpe_pair(std::string_view vocab, const std::string& vocab_where,
                       std::string_view merges, const std::string& merges_where,
                       const TokenRoles& roles) {
  using Kind = TokenizerClass::Kind;
  check_class(roles.tokenizer_class(), {Kind::kGpt2, Kind::kRoberta}, vocab_where);
  BpeParts parts;
  const json tokens = parse_json(vocab, vocab_where, {.max_bytes = kLargestVocabulary});
  parts.vocabulary = Vocabulary::from_json(tokens, vocab_where);
  parts.splitter = std::make_unique<WordSplitter>(WordSplitter::gpt2());
  parts.cut = Cut::kBeforeSpace;
  const std::string valid = repaired_utf8(merges);
  COMPACT_CHECK(valid == merges, merges_where, ": must be UTF-8");
  const std::vector<ByteBpe::Merge> pairs = merges_of_lines(valid, merges_where);
  parts.model = std::make_unique<ByteBpe>(parts.vocabulary, pairs, BpeSettings{}, merges_where);
  const auto special = [&](const char* name) {
    const auto id = parts.vocabulary.find(name);
    COMPACT_CHECK(id, vocab_where, ": needs the token ", name);
    parts.added.push_back({name, *id});
    return *id;
  };
  json processor;
  if (parts.vocabulary.find("<s>") && parts.vocabulary.find("</s>")) {
    const uint32_t begin = special("<s>"), pad = special("<pad>"), end = special("</s>");
    special("<unk>");
    special("<mask>");
    parts.added.back().lstrip = true;
    parts.format = SequenceFormat{{begin}, {end, end}, {end}, pad, false};
    processor = {{"type", "RobertaProcessing"},
                 {"sep", {"</s>", end}},
                 {"cls", {"<s>", begin}},
                 {"trim_offsets", true},
                 {"add_prefix_space", false}};
  } else {
    parts.format = SequenceFormat{{}, {}, {}, special("<|endoftext|>"), true};
  }
  take_roles(roles, parts, vocab_where);
  const json bytes{{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", true}};
  parts.json = json{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", json_of(parts.added)},
      {"normalizer", nullptr},
      {"pre_tokenizer", bytes},
      {"post_processor", processor},
      {"decoder", bytes},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", false},
        {"vocab", tokens},
        {"merges",
         pairs}}}}.dump();
  return parts;
}

}  // namespace compact
