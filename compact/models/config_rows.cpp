// SPDX-License-Identifier: Apache-2.0
#include "compact/models/config_rows.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/model_numbers.h"

namespace compact {
namespace {

using nlohmann::json;

const json& nothing() {
  static const json none = json::object();
  return none;
}

}  // namespace

ConfigRows::ConfigRows(const json& object, std::string_view where)
    : given(object, std::string(where)), reads_(true) {
  const json* layers = given.find("per_layer_config");  // of any type of model
  COMPACT_CHECK(!layers || layers->empty(), where,
                ": per_layer_config must be empty, since all layers are alike here, is ",
                layers->dump());
}

ConfigRows::ConfigRows(std::string_view where, std::string dtype)
    : given(nothing(), std::string(where)), reads_(false), dtype_(std::move(dtype)) {}

void ConfigRows::size(const char* key, int64_t& value, Need need, int64_t most) {
  needs(key, need);
  value = given.integer(key, value);
  check_size(key, value, most);
  put(key, value);
}

void ConfigRows::check_size(const char* key, int64_t value, int64_t most) const {
  COMPACT_CHECK(value >= 1 && value <= most, where(), ": ", key, " must be from 1 to ", most,
                ", is ", value);
}

void ConfigRows::sides(const char* key, int64_t& height, int64_t& width) {
  const json* value = given.find(key);
  if (value && value->is_array()) {
    const auto sides = given.required_list<int64_t>(key);
    COMPACT_CHECK(sides.size() == 2, where(), ": ", key,
                  " must be one number, or height and width, is ", value->dump());
    height = sides[0], width = sides[1];
  } else if (value) {
    height = width = given.integer(key, 0);
  }
  for (const int64_t side : {height, width}) check_size(key, side, kMostSize);
  put(key, height == width ? json(height) : json{height, width});
}

void ConfigRows::number(const char* key, double& value, Need need) {
  needs(key, need);
  put(key, value = given.number(key, value));
}

void ConfigRows::number(const char* key, std::optional<double>& value) {
  if (given.find(key)) {
    value = given.number(key, 0);
  } else if (given.has(key)) {
    value.reset();
  }
  put(key, value ? json(*value) : json());
}

void ConfigRows::positive(const char* key, double& value) {
  number(key, value);
  check_positive({{key, value}}, where());
}

void ConfigRows::positive_or_none(const char* key, double& value) {
  if (given.has(key) && !given.find(key)) value = 0;
  if (given.find(key) || value != 0) return positive(key, value);
  put(key, nullptr);
}

void ConfigRows::dropout(const char* key, double& value) {
  number(key, value);
  COMPACT_CHECK(value >= 0 && value < 1, where(), ": ", key, " must be at least 0 and below 1, is ",
                value);
}

void ConfigRows::flag(const char* key, bool& value, Need need) {
  needs(key, need);
  put(key, value = given.flag(key, value));
}

void ConfigRows::token(const char* key, std::optional<int64_t>& id) {
  id = given.token(key, id);
  put(key, id ? json(*id) : json());
}

void ConfigRows::tokens(const char* key, std::vector<int64_t>& ids) {
  ids = given.tokens(key, ids);
  put(key, ids.empty() ? json() : ids.size() == 1 ? json(ids[0]) : json(ids));
}

size_t ConfigRows::choice(const char* key, Texts texts, size_t value) {
  return chosen(key, given.text(key, texts.begin()[value]), texts);
}

size_t ConfigRows::model_type(Texts types, size_t value) {
  const std::string own = reads_ ? "" : types.begin()[value];
  return chosen("model_type", given.text("model_type", own), types);
}

void ConfigRows::gelu(const char* key, bool& tanh) {
  tanh = choice(key, {"gelu", "gelu_new", "gelu_pytorch_tanh"}, tanh ? 1 : 0) > 0;
}

size_t ConfigRows::chosen(const char* key, const std::string& text, Texts texts) {
  std::string known;
  for (const char* const& one : texts) {
    if (&one != texts.begin()) known += &one + 1 == texts.end() ? " or " : ", ";
    known += one;
  }
  const auto found = std::ranges::find(texts, text);
  COMPACT_CHECK(found != texts.end(), where(), ": ", key, " must be ", known, ", is `", text, "`");
  put(key, text);
  return static_cast<size_t>(found - texts.begin());
}

void ConfigRows::never(Texts flags) const {
  for (const char* key : flags) {
    COMPACT_CHECK(!given.flag(key, false), where(), ": ", key, " must be false, is true");
  }
}

void ConfigRows::refuse(const char* type, const json& harmless, Texts keys) const {
  for (const char* key : keys) {
    const json* value = given.find(key);
    COMPACT_CHECK(!value || *value == harmless, where(), ": ", key, " must be ", harmless.dump(),
                  " with model_type ", type, ", is ", value->dump());
  }
}

void check_tokens(const TokenIds& tokens, std::string_view where) {
  const auto check = [&](const char* key, int64_t id) {
    COMPACT_CHECK(id >= 0 && id < tokens.vocabulary, where, ": ", key,
                  " must be from 0 to vocab_size - 1 = ", tokens.vocabulary - 1, ", is ", id);
  };
  if (tokens.bos) check("bos_token_id", *tokens.bos);
  for (const int64_t id : tokens.eos) check("eos_token_id", id);
  if (tokens.pad) check("pad_token_id", *tokens.pad);
}

void check_heads(int64_t hidden, int64_t heads, std::string_view where) {
  COMPACT_CHECK(hidden % heads == 0, where,
                ": hidden_size must be a multiple of num_attention_heads, is ", hidden, " with ",
                heads, " heads");
}

void check_rotary_heads(int64_t hidden, int64_t heads, int64_t kv_heads, int64_t head_dim,
                        std::string_view where) {
  check_heads(hidden, heads, where);
  COMPACT_CHECK(heads % kv_heads == 0, where,
                ": num_attention_heads must be a multiple of num_key_value_heads, is ", heads,
                " with ", kv_heads);
  COMPACT_CHECK(head_dim % 2 == 0, where, ": head_dim must be even, is ", head_dim);
}

}  // namespace compact
