// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/data/files/printable.h"
#include "compact/json/json.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr int64_t kLargestJson = int64_t{256} << 20;
const char* const kTokenKeys[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};

// The component at `key`, or nullptr.
const json* component(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

}  // namespace

json parse_tokenizer_json(std::string_view text, const std::string& where,
                          std::string_view model_type) {
  json root = parse_json(text, where, {.max_bytes = kLargestJson});
  COMPACT_CHECK(root.is_object(), where, ": must be a JSON object");
  COMPACT_CHECK(json_string(root, "version", "1.0", where) == "1.0", where,
                ": version must be 1.0, is ", printable(root["version"].dump()));
  const std::string type = component_type(root, "model", where);
  COMPACT_CHECK(type == model_type, where, ": model must be of type ", model_type, ", is ",
                type.empty() ? "missing" : printable(type));
  return root;
}

std::string tokenizer_json_type(const std::string& path) {
  const json root = read_json(path, {.max_bytes = kLargestJson});
  COMPACT_CHECK(root.is_object(), path, ": must be a JSON object");
  return component_type(root, "model", path);
}

std::string component_type(const json& object, const char* key, const std::string& where) {
  const json* const found = component(object, key);
  if (!found) return {};
  COMPACT_CHECK(found->is_object() && found->contains("type") && (*found)["type"].is_string() &&
                    !(*found)["type"].get_ref<const std::string&>().empty(),
                where, ": ", key, " must be an object with a type");
  return (*found)["type"];
}

void allow_keys(const json& object, std::initializer_list<std::string_view> known,
                const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    COMPACT_CHECK(std::find(known.begin(), known.end(), key) != known.end(), where,
                  " has a setting that is not known here, `", printable(key), "`");
  }
}

bool json_flag(const json& object, const char* key, bool fallback, const std::string& where) {
  const json* const found = component(object, key);
  if (!found) return fallback;
  COMPACT_CHECK(found->is_boolean(), where, ": ", key, " must be true or false, is ",
                printable(found->dump()));
  return found->get<bool>();
}

std::string json_string(const json& object, const char* key, std::string_view fallback,
                        const std::string& where) {
  const json* const found = component(object, key);
  if (!found) return std::string(fallback);
  COMPACT_CHECK(found->is_string(), where, ": ", key, " must be a string, is ",
                printable(found->dump()));
  return found->get<std::string>();
}

std::vector<AddedToken> read_added_tokens(const json& root, Vocabulary& vocabulary,
                                          const std::string& where) {
  std::vector<AddedToken> tokens;
  const json* const list = component(root, "added_tokens");
  if (!list) return tokens;
  COMPACT_CHECK(list->is_array(), where, ": added_tokens must be a list");
  // The library numbers tokens that the model does not have from here, whatever the file says.
  int64_t next = vocabulary.count();
  for (const json& entry : *list) {
    const std::string at = cat(where, ": added_tokens[", tokens.size(), "]");
    COMPACT_CHECK(entry.is_object(), at, " must be an object");
    AddedToken token;
    token.content = json_string(entry, "content", "", at);
    COMPACT_CHECK(!token.content.empty(), at, ": content must not be empty");
    bool* const flags[] = {&token.single_word, &token.lstrip, &token.rstrip, &token.normalized,
                           &token.special};
    for (size_t i = 0; i < std::size(flags); ++i) {
      COMPACT_CHECK(component(entry, kTokenKeys[i]), at, " must have `", kTokenKeys[i], "`");
      *flags[i] = json_flag(entry, kTokenKeys[i], false, at);
    }
    const json* const id = component(entry, "id");
    COMPACT_CHECK(id && id->is_number_unsigned() && id->get<uint64_t>() <= Vocabulary::kLargestId,
                  at, ": id must be a whole number from 0 to ", Vocabulary::kLargestId);
    token.id = id->get<uint32_t>();
    const auto known = vocabulary.find(token.content);
    COMPACT_CHECK(token.id == (known ? static_cast<int64_t>(*known) : next), at, ": `",
                  printable(token.content), "` must have the id ",
                  known ? static_cast<int64_t>(*known) : next,
                  known ? ", as in the vocabulary" : ", the next after the vocabulary", ", has ",
                  token.id);
    if (!known) {
      vocabulary.add(token.content, token.id, at);
      ++next;
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

json json_of(std::vector<AddedToken> tokens) {
  std::ranges::sort(tokens, {}, &AddedToken::id);
  json list = json::array();
  for (const AddedToken& token : tokens) {
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"single_word", token.single_word},
                    {"lstrip", token.lstrip},
                    {"rstrip", token.rstrip},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  }
  return list;
}

uint32_t read_pad(const json& root, const TokenRoles& roles, const Vocabulary& vocabulary,
                  uint32_t fallback, const std::string& where) {
  if (const std::string* const pad = roles.token("pad_token")) {
    if (const auto id = vocabulary.find(*pad)) return *id;
  }
  if (const json* const padding = component(root, "padding")) {
    COMPACT_CHECK(padding->is_object(), where, ": padding must be an object");
    const json* const id = component(*padding, "pad_id");
    COMPACT_CHECK(id && id->is_number_unsigned() &&
                      id->get<uint64_t>() < static_cast<uint64_t>(vocabulary.size()),
                  where, ": padding: pad_id must be an id of the vocabulary, below ",
                  vocabulary.size());
    return id->get<uint32_t>();
  }
  for (const char* const name : {"[PAD]", "<pad>"}) {
    if (const auto id = vocabulary.find(name)) return *id;
  }
  return fallback;
}

}  // namespace compact
