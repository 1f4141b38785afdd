// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/token_roles.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/data/files/printable.h"
#include "compact/data/tokenizers/tokenizer_json.h"
#include "compact/json/json.h"

namespace compact {
namespace {

using nlohmann::json;

const char* const kTokenRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                   "pad_token", "cls_token", "mask_token"};

// A text, or an object with `content` and flags; a text is special.
AddedToken token_of(const json& value, const std::string& where) {
  AddedToken token;
  if (value.is_string()) {
    token.content = value;
  } else {
    COMPACT_CHECK(value.is_object(), where, " must be a token: a text, or an object with content");
    token.content = json_string(value, "content", "", where);
    token.special = json_flag(value, "special", true, where);
    token.normalized = json_flag(value, "normalized", !token.special, where);
    token.single_word = json_flag(value, "single_word", false, where);
    token.lstrip = json_flag(value, "lstrip", false, where);
    token.rstrip = json_flag(value, "rstrip", false, where);
  }
  return token;
}

json object_of(const std::string& text, const std::string& where) {
  if (text.empty()) return json::object();
  json value = parse_json(text, where);
  COMPACT_CHECK(value.is_object(), where, ": must be a JSON object");
  return value;
}

bool has(const Vocabulary& vocabulary, int64_t id) {
  if (id < 0 || id >= vocabulary.size()) return false;
  return !vocabulary.token(static_cast<uint32_t>(id))->empty();
}

}  // namespace

TokenRoles::TokenRoles(const std::function<std::string(const char*)>& text_of,
                       const std::string& folder) {
  const auto read = [&](const char* name) { return object_of(text_of(name), folder + "/" + name); };
  const auto take = [&](const json& from, const char* name) {
    const std::string where = folder + "/" + name + ": ";
    for (const char* const role : kTokenRoles) {
      const auto found = from.find(role);
      if (found == from.end()) continue;
      AddedToken token = found->is_null() ? AddedToken() : token_of(*found, where + role);
      token.special = true;
      named_[role] = std::move(token);
    }
    // Roles of a model's own, as image_token.
    for (const auto& [key, value] : from.items()) {
      const bool own = key.ends_with("_token") && !std::ranges::count(kTokenRoles, key);
      if (!own || !(value.is_string() || value.is_object())) continue;
      extra_.push_back(token_of(value, where + key));
    }
    for (const char* const list : {"extra_special_tokens", "additional_special_tokens"}) {
      const auto found = from.find(list);
      if (found == from.end() || found->is_null()) continue;
      for (const json& value : *found) extra_.push_back(token_of(value, where + list));
    }
  };
  const char* const config_name = "tokenizer_config.json";
  const json config = read(config_name);
  take(config, config_name);
  class_ = tokenizer_class_of(config, read("config.json"), folder + "/" + config_name);
  COMPACT_CHECK(!json_flag(config, "split_special_tokens", false, folder + "/" + config_name),
                folder, "/", config_name,
                ": split_special_tokens true is not known here, must be false: ",
                "special tokens that a text spells are tokens; set it to false, or take such ",
                "texts out of the data");
  if (config.contains("add_bos_token") && !config["add_bos_token"].is_null()) {
    adds_begin_ = json_flag(config, "add_bos_token", false, folder + "/" + config_name);
  }
  if (const auto decoder = config.find("added_tokens_decoder"); decoder != config.end()) {
    const std::string where = cat(folder, "/", config_name, ": added_tokens_decoder");
    has_decoder_ = true;
    COMPACT_CHECK(decoder->is_object(), where, " must be an object {\"id\": token}");
    for (const auto& [key, value] : decoder->items()) {
      int64_t id = -1;
      const auto end = std::from_chars(key.data(), key.data() + key.size(), id);
      COMPACT_CHECK(end.ptr == key.data() + key.size() && id >= 0, where, ": ids must be numbers, ",
                    "one is `", printable(key), "`");
      AddedToken token = token_of(value, where);
      if (value.is_object()) token.special = json_flag(value, "special", false, where);
      numbered_.emplace(id, std::move(token));
    }
  } else {
    take(read("special_tokens_map.json"), "special_tokens_map.json");
    const json numbers = read("added_tokens.json");
    for (const auto& [content, id] : numbers.items()) {
      COMPACT_CHECK(id.is_number_unsigned(), folder, "/added_tokens.json: ids must be numbers");
      const bool special =
          std::ranges::any_of(named_, [&](const auto& n) { return n.second.content == content; }) ||
          std::ranges::any_of(extra_, [&](const auto& e) { return e.content == content; });
      numbered_.emplace(id.get<int64_t>(),
                        AddedToken{.content = content, .special = special, .normalized = !special});
    }
  }
  for (const char* const name : {"generation_config.json", "config.json"}) {
    const json object = read(name);
    const auto found = object.find("eos_token_id");
    if (found == object.end() || found->is_null()) {
      // transformers asks the first file that there is alone.
      if (never_stops_.empty() && !text_of(name).empty()) never_stops_ = folder + "/" + name;
      continue;
    }
    stops_file_ = folder + "/" + name;
    for (const json& id : found->is_array() ? *found : json::array({*found})) {
      COMPACT_CHECK(id.is_number_integer(), stops_file_,
                    ": eos_token_id must be an id or a list of ids");
      stops_.push_back(id.get<int64_t>());
    }
    break;
  }
}

const std::string* TokenRoles::token(const char* role) const {
  const auto found = named_.find(role);
  return found == named_.end() || found->second.content.empty() ? nullptr : &found->second.content;
}

bool TokenRoles::lists(const std::string& content) const {
  const auto is = [&](const auto& pair) { return pair.second.content == content; };
  return std::ranges::any_of(numbered_, is) || std::ranges::any_of(named_, is) ||
         std::ranges::count(extra_, content, &AddedToken::content);
}

std::vector<AddedToken> TokenRoles::add_to(Vocabulary& vocabulary, std::vector<AddedToken>& added,
                                           const std::string& where) const {
  std::vector<AddedToken> all, fresh;  // in transformers' order
  for (const auto& [id, token] : numbered_) all.push_back(token);
  for (const char* const role : kTokenRoles) {
    if (const auto named = named_.find(role); named != named_.end()) all.push_back(named->second);
  }
  all.insert(all.end(), extra_.begin(), extra_.end());
  const std::string* const pad = this->token("pad_token");
  const auto only_fills = [&](const AddedToken& token) {
    return token.content.empty() ||
           (pad && token.content == *pad && !vocabulary.find(token.content));
  };
  const auto grows = [&](const AddedToken& token) {
    return !only_fills(token) && !vocabulary.find(token.content);
  };
  const auto last = std::find_if(all.rbegin(), all.rend(), grows).base();
  for (auto token = all.begin(); token != all.end(); ++token) {
    if (token->content.empty() || (token >= last && only_fills(*token))) continue;
    token->special |= std::ranges::any_of(
        named_, [&](const auto& n) { return n.second.content == token->content; });
    const auto there = std::ranges::find(added, token->content, &AddedToken::content);
    if (there != added.end()) {
      token->id = there->id;
      token->special |= there->special;
      const bool listed = token - all.begin() < std::ssize(numbered_);
      if (!listed || *there == *token) continue;
      *there = *token;
    } else {
      const auto known = vocabulary.find(token->content);
      token->id = known ? *known : static_cast<uint32_t>(vocabulary.count());
      if (!known) vocabulary.add(token->content, token->id, where);
      added.push_back(*token);
    }
    fresh.push_back(*token);
  }
  return fresh;
}

std::vector<uint32_t> TokenRoles::stops(const Vocabulary& vocabulary) const {
  std::vector<uint32_t> ids;
  for (const int64_t id : stops_) {
    if (has(vocabulary, id)) ids.push_back(static_cast<uint32_t>(id));
  }
  return ids;
}

std::optional<uint32_t> TokenRoles::end(const Vocabulary& vocabulary,
                                        const std::vector<AddedToken>& added) const {
  const std::string* const name = token("eos_token");
  const std::optional<uint32_t> eos = name ? vocabulary.find(*name) : std::nullopt;
  const std::vector<uint32_t> stops = this->stops(vocabulary);
  const bool stopped = eos && std::ranges::find(stops, *eos) != stops.end();
  if (stopped || stops.empty()) return eos;
  const auto special = std::ranges::find_if(stops, [&](uint32_t id) {
    return std::ranges::any_of(added, [&](const AddedToken& t) { return t.special && t.id == id; });
  });
  return special == stops.end() ? stops[0] : *special;
}

std::vector<std::string> TokenRoles::warnings(const Vocabulary& vocabulary,
                                              const std::vector<AddedToken>& added,
                                              uint32_t end) const {
  std::vector<std::string> lines;
  for (const int64_t id : stops_) {
    if (id < 0 || has(vocabulary, id)) continue;
    lines.push_back(cat(stops_file_, ": a generation stops at the token ", id,
                        ", which the tokenizer does not have; no text is trained to end with it"));
  }
  if (!never_stops_.empty() && token("eos_token")) {
    lines.push_back(cat(never_stops_, ": has no eos_token_id, so that `generate` of transformers ",
                        "stops at no token; texts are trained to end with `",
                        printable(*vocabulary.token(end)), "`: write \"eos_token_id\": ", end,
                        " there"));
  }
  const bool stops = std::ranges::find(stops_, int64_t{end}) != stops_.end();
  if (stops && std::ranges::find(added, end, &AddedToken::id) == added.end()) {
    lines.push_back(cat(stops_file_, ": a generation stops at the token ", end, ", `",
                        printable(*vocabulary.token(end)),
                        "`, which is an ordinary one; texts are trained to end with it"));
  }
  return lines;
}

}  // namespace compact
