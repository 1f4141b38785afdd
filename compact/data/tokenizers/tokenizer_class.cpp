// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/tokenizer_class.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/files/printable.h"
#include "compact/data/tokenizers/class_names.h"
#include "compact/data/tokenizers/token_roles.h"
#include "compact/data/tokenizers/tokenizer_json.h"
#include "compact/data/tokenizers/word_splitter.h"

namespace compact {
namespace {

using nlohmann::json;
using Kind = TokenizerClass::Kind;

const std::string kSpacePiece = "\u2581";

struct DefaultToken {
  const char* role;
  const char* token;
};

struct ClassRow {
  Kind kind;
  const char* name;
  std::vector<DefaultToken> tokens;  // that it takes where the folder names none
};

const ClassRow kRebuilding[] = {
    {Kind::kBert,
     "BertTokenizer",
     {{"unk_token", "[UNK]"},
      {"sep_token", "[SEP]"},
      {"pad_token", "[PAD]"},
      {"cls_token", "[CLS]"},
      {"mask_token", "[MASK]"}}},
    {Kind::kGpt2,
     "GPT2Tokenizer",
     {{"unk_token", "<|endoftext|>"},
      {"bos_token", "<|endoftext|>"},
      {"eos_token", "<|endoftext|>"}}},
    {Kind::kGptNeoX,
     "GPTNeoXTokenizer",
     {{"unk_token", "<|endoftext|>"},
      {"bos_token", "<|endoftext|>"},
      {"eos_token", "<|endoftext|>"},
      {"pad_token", "<|padding|>"}}},
    {Kind::kRoberta,
     "RobertaTokenizer",
     {{"bos_token", "<s>"},
      {"eos_token", "</s>"},
      {"sep_token", "</s>"},
      {"cls_token", "<s>"},
      {"unk_token", "<unk>"},
      {"pad_token", "<pad>"},
      {"mask_token", "<mask>"}}},
    {Kind::kQwen2,
     "Qwen2Tokenizer",
     {{"unk_token", "<|endoftext|>"},
      {"eos_token", "<|endoftext|>"},
      {"pad_token", "<|endoftext|>"}}},
    {Kind::kGemma,
     "GemmaTokenizer",
     {{"unk_token", "<unk>"},
      {"bos_token", "<bos>"},
      {"eos_token", "<eos>"},
      {"pad_token", "<pad>"},
      {"mask_token", "<mask>"}}},
    {Kind::kLlama,
     "LlamaTokenizer",
     {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}}},
};

const ClassRow& row_of(Kind kind) { return *std::ranges::find(kRebuilding, kind, &ClassRow::kind); }

Kind kind_of(const std::string& name) {
  if (name == kBackendName) return Kind::kBackend;
  const auto row = std::ranges::find(kRebuilding, name, &ClassRow::name);
  return row == std::end(kRebuilding) ? Kind::kOther : row->kind;
}

// The end of an error.
std::string way_out(const TokenizerClass& of) {
  if (of.fixed) {
    return "; beside a model of this type it does so with every tokenizer: take the tokenizer's "
           "files without config.json";
  }
  return "; for the file as it is, or as AutoTokenizer saves it, set tokenizer_class to "
         "PreTrainedTokenizerFast in tokenizer_config.json";
}

std::string string_at(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Without settings that change nothing: those of offsets, and those with the value that they have
// by default.
json without_usual(json value) {
  if (value.is_array()) {
    for (json& part : value) part = without_usual(std::move(part));
  }
  if (!value.is_object()) return value;
  json result = json::object();
  for (auto& [key, part] : value.items()) {
    const bool usual = part.is_null() || (part == false && key != "strip_accents") || part == "" ||
                       key == "trim_offsets" || (key == "use_regex" && part == true) ||
                       (key == "max_input_chars_per_word" && part == 100) ||
                       (key == "continuing_subword_prefix" && part == "##");
    if (!usual) result[key] = without_usual(std::move(part));
  }
  return result;
}

class Rebuilt {
 public:
  Rebuilt(json& root, const TokenRoles& roles, const std::string& where)
      : root_(root), roles_(roles), of_(roles.tokenizer_class()), where_(where) {}

  std::string run() {
    add_special_tokens();
    switch (of_.kind) {
      case Kind::kBackend:
      case Kind::kOther:
        break;
      case Kind::kBert:
        bert();
        break;
      case Kind::kRoberta:
      case Kind::kGptNeoX:
      case Kind::kGpt2:
        if (of_.kind == Kind::kRoberta) roberta();
        if (of_.kind == Kind::kGptNeoX) plain_sentences();
        bpe({});
        put("normalizer", of_.kind == Kind::kGptNeoX ? json{{"type", "NFC"}} : json());
        put("pre_tokenizer", bytes(true));
        put("decoder", bytes(true), false);
        break;
      case Kind::kQwen2:
        bpe({});
        put("normalizer", {{"type", "NFC"}});
        put("pre_tokenizer", {{"type", "Sequence"},
                              {"pretokenizers",
                               {{{"type", "Split"},
                                 {"pattern", {{"Regex", WordSplitter::qwen2_expression()}}},
                                 {"behavior", "Isolated"},
                                 {"invert", false}},
                                bytes(false)}}});
        put("decoder", bytes(true), false);
        break;
      case Kind::kGemma:
        bpe({{"fuse_unk", true}, {"byte_fallback", true}, {"unk_token", token("unk_token")}});
        put("normalizer", replace(" ", kSpacePiece));
        put("pre_tokenizer", {{"type", "Split"},
                              {"pattern", {{"String", " "}}},
                              {"behavior", "MergedWithPrevious"},
                              {"invert", false}});
        put("decoder", marks(false), false);
        break;
      case Kind::kLlama:
        bpe({{"fuse_unk", true}, {"byte_fallback", true}});
        put("normalizer", nullptr);
        put("pre_tokenizer", {{"type", "Metaspace"},
                              {"replacement", kSpacePiece},
                              {"prepend_scheme", !of_.prefix_space.value_or(true) ? "never"
                                                 : of_.legacy.value_or(false)     ? "always"
                                                                                  : "first"},
                              {"split", false}});
        put("decoder", marks(of_.prefix_space.value_or(true)), false);
    }
    return changes_;
  }

 private:
  // `tokens`: the key affects the tokens of a text.
  void put(const char* key, json value, bool tokens = true) {
    if (without_usual(root_.value(key, json())) == without_usual(value)) return;
    if (tokens) changes_ += cat(" ", key, "=", value.dump());
    root_[key] = std::move(value);
  }

  std::string token(std::string_view role) const {
    const std::string key(role);
    if (roles_.says(key)) return roles_.token(key.c_str()) ? *roles_.token(key.c_str()) : "";
    const auto& all = row_of(of_.kind).tokens;
    const auto found = std::ranges::find(all, role, [](const DefaultToken& d) { return d.role; });
    return found == all.end() ? "" : found->token;
  }

  const json& vocabulary() const {
    static const json none = json::object();
    const auto found = root_["model"].find("vocab");
    return found != root_["model"].end() && found->is_object() ? *found : none;
  }

  bool is_added(const std::string& content) const {
    const json& added = root_["added_tokens"];
    return std::any_of(added.begin(), added.end(), [&](const json& entry) {
      return entry.is_object() && string_at(entry, "content") == content;
    });
  }

  std::optional<json> id_of(const std::string& content) const {
    if (const auto found = vocabulary().find(content); found != vocabulary().end()) return *found;
    for (const json& entry : root_["added_tokens"]) {
      if (entry.is_object() && string_at(entry, "content") == content && entry.contains("id")) {
        return entry["id"];
      }
    }
    return std::nullopt;
  }

  // Adds the class's default special tokens where the folder names none, so that texts match them.
  // Refuses added tokens that added_tokens_decoder lacks, since transformers drops them.
  void add_special_tokens() {
    if (root_.value("added_tokens", json()).is_null()) root_["added_tokens"] = json::array();
    if (!root_["added_tokens"].is_array()) return;
    for (const json& entry : root_["added_tokens"]) {
      const std::string content = entry.is_object() ? string_at(entry, "content") : "";
      COMPACT_CHECK(!roles_.has_decoder() || roles_.lists(content), where_, ": adds the token `",
                    printable(content),
                    "`, which transformers does not take, since it reads it as ", of_.name,
                    " and added_tokens_decoder of tokenizer_config.json lacks it; add it "
                    "there",
                    way_out(of_));
    }
    for (const DefaultToken& one : row_of(of_.kind).tokens) {
      const std::string content = token(one.role);
      if (roles_.says(one.role) || is_added(content)) continue;
      const auto id = vocabulary().find(content);
      COMPACT_CHECK(id != vocabulary().end(), where_, ": transformers reads it as ", of_.name,
                    ", which adds `", content, "` (", one.role,
                    ") to a vocabulary that lacks it; name one that it has, or null, in "
                    "tokenizer_config.json",
                    way_out(of_));
      root_["added_tokens"].push_back({{"id", *id},
                                       {"content", content},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", true}});
      changes_ += " special=" + content;
    }
  }

  // Settings of the model beside vocabulary and merges.
  void model(json value) {
    json& model = root_["model"];
    json old = model;
    for (const char* const key : {"vocab", "merges"}) {
      old.erase(key);
      if (model.contains(key)) value[key] = std::move(model[key]);
    }
    json fresh = value;
    for (const char* const key : {"vocab", "merges"}) fresh.erase(key);
    if (without_usual(old) != without_usual(fresh)) changes_ += " model=" + fresh.dump();
    model = std::move(value);
  }

  void bpe(json settings) {
    settings["type"] = "BPE";
    model(std::move(settings));
  }

  json bytes(bool use_regex) const {
    return {{"type", "ByteLevel"},
            {"add_prefix_space", of_.prefix_space.value_or(false)},
            {"trim_offsets", true},
            {"use_regex", use_regex}};
  }

  static json replace(const std::string& from, const std::string& to) {
    return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  }

  static json marks(bool strips) {
    json decoders = {replace(kSpacePiece, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
    if (strips) {
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    return {{"type", "Sequence"}, {"decoders", decoders}};
  }

  // The id of a token that the class puts around sentences.
  json around(const char* role) const {
    const std::optional<json> id = id_of(token(role));
    COMPACT_CHECK(id, where_, ": transformers reads it as ", row_of(of_.kind).name,
                  ", which puts `", printable(token(role)), "` (", role,
                  ") around texts, a token that the vocabulary lacks; name one that it has in ",
                  "tokenizer_config.json", way_out(of_));
    return *id;
  }

  void bert() {
    model({{"type", "WordPiece"},
           {"unk_token", token("unk_token")},
           {"continuing_subword_prefix", "##"},
           {"max_input_chars_per_word", 100u}});
    const bool accents = of_.strip_accents.value_or(of_.lowercase);
    json normalizer = {{"type", "BertNormalizer"},
                       {"clean_text", true},
                       {"handle_chinese_chars", of_.chinese_characters},
                       {"strip_accents", nullptr},
                       {"lowercase", of_.lowercase}};
    const json old = root_.value("normalizer", json::object());
    if (accents != of_.lowercase ||
        (old.is_object() && old.value("strip_accents", json()) == accents)) {
      normalizer["strip_accents"] = accents;
    }
    put("normalizer", std::move(normalizer));
    put("pre_tokenizer", {{"type", "BertPreTokenizer"}});
    put("decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}, false);
    const json cls = around("cls_token"), sep = around("sep_token");
    const std::string first = token("cls_token"), last = token("sep_token");
    const json old_processor = root_.value("post_processor", json());
    if (without_usual(old_processor) ==
        json{{"type", "BertProcessing"}, {"cls", {first, cls}}, {"sep", {last, sep}}}) {
      return;
    }
    const auto special = [](const std::string& id, unsigned type) {
      return json{{"SpecialToken", {{"id", id}, {"type_id", type}}}};
    };
    const auto sentence = [](const char* id, unsigned type) {
      return json{{"Sequence", {{"id", id}, {"type_id", type}}}};
    };
    const auto entry = [](const std::string& name, const json& id) {
      return json{{"id", name}, {"ids", json::array({id})}, {"tokens", json::array({name})}};
    };
    put("post_processor",
        {{"type", "TemplateProcessing"},
         {"single", json::array({special(first, 0), sentence("A", 0), special(last, 0)})},
         {"pair", json::array({special(first, 0), sentence("A", 0), special(last, 0),
                               sentence("B", 1), special(last, 1)})},
         {"special_tokens", {{first, entry(first, cls)}, {last, entry(last, sep)}}}});
  }

  void roberta() {
    json value = {{"type", "RobertaProcessing"},
                  {"sep", {token("sep_token"), around("sep_token")}},
                  {"cls", {token("cls_token"), around("cls_token")}},
                  {"trim_offsets", true},
                  {"add_prefix_space", of_.prefix_space.value_or(false)}};
    const json old = root_.value("post_processor", json());
    const bool same = old.is_object() && old.value("type", json()) == value["type"] &&
                      old.value("sep", json()) == value["sep"] &&
                      old.value("cls", json()) == value["cls"];
    if (!same) put("post_processor", std::move(value));
  }

  // Nothing around them.
  void plain_sentences() {
    const json old = root_.value("post_processor", json());
    if (old.is_null() || (old.is_object() && old.value("type", json()) == "ByteLevel")) return;
    put("post_processor", nullptr);
  }

  json& root_;
  const TokenRoles& roles_;
  const TokenizerClass& of_;
  const std::string& where_;
  std::string changes_;
};

}  // namespace

TokenizerClass tokenizer_class_of(const json& tokenizer_config, const json& model,
                                  const std::string& where) {
  TokenizerClass result;
  const std::string type = string_at(model, "model_type");
  result.language_model = !type.empty() && type != "bert" && type != "roberta";
  if (tokenizer_config.contains("compact_tokenizer")) return result;
  std::string name = string_at(tokenizer_config, "tokenizer_class");
  if (name.empty()) name = string_at(model, "tokenizer_class");
  const NamedClass named = class_named(std::move(name), type);
  result.name = named.name;
  result.fixed = named.fixed;
  result.by_type = named.by_type;
  result.kind = kind_of(named.name);
  const auto optional = [&](const char* key) -> std::optional<bool> {
    const auto found = tokenizer_config.find(key);
    if (found == tokenizer_config.end() || found->is_null()) return std::nullopt;
    return json_flag(tokenizer_config, key, false, where);
  };
  result.lowercase = optional("do_lower_case").value_or(true);
  result.chinese_characters = optional("tokenize_chinese_chars").value_or(true);
  result.strip_accents = optional("strip_accents");
  result.prefix_space = optional("add_prefix_space");
  result.legacy = optional("legacy");
  return result;
}

void check_class(const TokenizerClass& of, std::initializer_list<Kind> known,
                 const std::string& where) {
  COMPACT_CHECK(of.kind == Kind::kBackend || std::ranges::find(known, of.kind) != known.end(),
                where, ": transformers reads it as ", of.name,
                ", which makes a tokenizer of it by rules that are not known here", way_out(of));
}

Metaspace::Prefix sentencepiece_prefix(const TokenizerClass& of, bool own, bool bare,
                                       const std::string& where) {
  using Prefix = Metaspace::Prefix;
  check_class(of, {Kind::kLlama}, where);
  if (of.kind != Kind::kLlama) {
    if (!own) return Prefix::kNone;
    return of.legacy.value_or(true) ? Prefix::kAlways : Prefix::kFirst;
  }
  COMPACT_CHECK(bare, where, ": transformers reads it as LlamaTokenizer, which takes pieces and ",
                "merges alone, but it is no BPE of bytes without rules and user-defined pieces",
                way_out(of));
  if (!of.prefix_space.value_or(true)) return Prefix::kNone;
  return of.legacy.value_or(false) ? Prefix::kEach : Prefix::kFirst;
}

std::string rebuild_tokenizer_json(json& root, const TokenRoles& roles, const std::string& where) {
  const TokenizerClass& of = roles.tokenizer_class();
  if (of.kind == Kind::kBackend) return "";
  const std::string model = component_type(root, "model", where);
  if (of.kind == Kind::kLlama && !of.by_type) {
    // transformers reads such a file as it is where the folder names the class.
    for (const char* const key : {"pre_tokenizer", "decoder"}) {
      if (root.contains(key) && root[key].dump().find("\"ByteLevel\"") != std::string::npos) {
        return "";
      }
    }
  }
  check_class(of,
              {Kind::kBert, Kind::kGpt2, Kind::kGptNeoX, Kind::kRoberta, Kind::kQwen2, Kind::kGemma,
               Kind::kLlama},
              where);
  const char* const wanted = of.kind == Kind::kBert ? "WordPiece" : "BPE";
  COMPACT_CHECK(model == wanted, where, ": has a model of type ", printable(model),
                ", but transformers reads it as ", row_of(of.kind).name, ", which makes one of ",
                wanted, way_out(of));
  return Rebuilt(root, roles, where).run();
}

}  // namespace compact
