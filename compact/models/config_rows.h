// SPDX-License-Identifier: Apache-2.0
// The keys of a model's config.json as rows: each names a key, the member of a configuration that
// has its value, and the rule for it. One function for each configuration,
//     void keys_of(ConfigRows& rows, SomeConfig& c);
// reads it, checks it and writes it. A key that is missing leaves its member as it is.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compact/base/check.h"
#include "compact/io/config_keys.h"
#include "compact/models/model_config.h"

namespace compact {

class ConfigRows {
 public:
  enum Need : uint8_t { kOptional, kRequired };
  static constexpr int64_t kMostSize = std::numeric_limits<int32_t>::max(), kMostLayers = 4096;

  // Rows read `object`, and throw InputError "`where`: KEY must ..., is ...".
  ConfigRows(const nlohmann::json& object, std::string_view where);
  // Rows check what the members have, and write it for weights of `dtype`.
  explicit ConfigRows(std::string_view where, std::string dtype = "");

  const ConfigKeys given;  // none where rows do not read
  bool reads() const { return reads_; }
  const std::string& where() const { return given.where(); }
  const std::string& dtype() const { return dtype_; }

  void size(const char* key, int64_t& value, Need need = kOptional, int64_t most = kMostSize);
  void layers(const char* key, int64_t& value, Need need = kOptional) {
    size(key, value, need, kMostLayers);
  }
  void number(const char* key, double& value, Need need = kOptional);
  void number(const char* key, std::optional<double>& value);  // null: none
  void positive(const char* key, double& value);
  void positive_or_none(const char* key, double& value);  // null: none, which is 0
  void dropout(const char* key, double& value);           // at least 0 and below 1
  void flag(const char* key, bool& value, Need need = kOptional);
  void sides(const char* key, int64_t& height, int64_t& width);  // sizes; one number: both
  template <class T>
  void list(const char* key, std::vector<T>& values, Need need = kOptional) {
    if (reads_ && (need == kRequired || given.find(key))) values = given.required_list<T>(key);
    put(key, values);
  }
  // bos_token_id and its like: null says that there is none. See check_tokens().
  void token(const char* key, std::optional<int64_t>& id);
  void tokens(const char* key, std::vector<int64_t>& ids);  // none, one or several
  // One of these texts; gives its number.
  using Texts = std::initializer_list<const char*>;
  size_t choice(const char* key, Texts texts, size_t value = 0);
  size_t model_type(Texts types, size_t value = 0);  // which must be given
  void gelu(const char* key, bool& tanh);            // as it is, or approximated by tanh

  // Refuse settings of features that are not implemented: flags that must be false, keys that must
  // have the neutral value.
  void never(Texts flags) const;
  void refuse(const char* type, const nlohmann::json& harmless, Texts keys) const;

  // Written in any case.
  void put(const char* key, nlohmann::json value) { written_[key] = std::move(value); }
  void put_dtypes() { put("torch_dtype", dtype_), put("dtype", dtype_); }
  void leave_out(const char* key) { written_.erase(key); }
  nlohmann::json& written() { return written_; }

 private:
  void needs(const char* key, Need need) const {
    if (reads_ && need == kRequired) given.required(key);
  }
  void check_size(const char* key, int64_t value, int64_t most) const;
  size_t chosen(const char* key, const std::string& text, Texts texts);

  bool reads_;
  std::string dtype_;
  nlohmann::json written_;
};

// Throws InputError on an id that is not below the vocabulary.
void check_tokens(const TokenIds& tokens, std::string_view where);
// Each head has its part of the hidden states.
void check_heads(int64_t hidden, int64_t heads, std::string_view where);
// The same, and heads are a multiple of those of keys and values, of an even width, since rotary
// positions turn pairs.
void check_rotary_heads(int64_t hidden, int64_t heads, int64_t kv_heads, int64_t head_dim,
                        std::string_view where);

// The configuration that keys_of() reads. Keys that do not change what is computed are ignored.
template <class C>
C read_config(const nlohmann::json& object, std::string_view where) {
  ConfigRows rows(object, where);
  C config;
  keys_of(rows, config);
  return config;
}
// Throws InputError, which names the member where difference() does, if config.json cannot say
// what `config` is: another network would be read from it.
template <class C>
nlohmann::json write_config(C config, const std::string& dtype = "float32") {
  ConfigRows rows("config", dtype);
  keys_of(rows, config);
  if (const C read = read_config<C>(rows.written(), "config"); !(read == config)) {
    std::string what = "it";
    if constexpr (requires { difference(config, read); }) what = difference(config, read);
    fail("config: config.json with model_type ",
         rows.written()["model_type"].template get<std::string>(), " cannot say ", what);
  }
  return std::move(rows.written());
}
// For constructors of networks: `config`, where it breaks no rule.
template <class C>
const C& checked(const C& config, std::string_view where = "model") {
  ConfigRows rows(where);
  C copy = config;
  keys_of(rows, copy);
  return config;
}

}  // namespace compact
