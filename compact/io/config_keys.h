// SPDX-License-Identifier: Apache-2.0
// Keys of Hugging Face's config.json, with the type that each must have.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "compact/base/check.h"

namespace compact {

// Typed access to the keys of one object; null counts as absent, as it does in transformers.
class ConfigKeys {
 public:
  ConfigKeys(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {
    COMPACT_CHECK(object.is_object(), where_, ": must be a JSON object");
  }

  const nlohmann::json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  // Whether the key is there, be it null.
  bool has(const char* key) const { return object_.contains(key); }

  const nlohmann::json& required(const char* key) const {
    const nlohmann::json* value = find(key);
    COMPACT_CHECK(value, where_, ": ", key, " must be given");
    return *value;
  }
  int64_t required_integer(const char* key) const { return integer_of(required(key), key); }
  // A list, of integers, of numbers or of texts.
  template <class T>
  std::vector<T> required_list(const char* key) const {
    const nlohmann::json& list = required(key);
    std::vector<T> values;
    COMPACT_CHECK(list.is_array(), where_, ": ", key, " must be a list, is ", list.dump());
    for (const nlohmann::json& value : list) {
      if constexpr (std::is_same_v<T, int64_t>) {
        values.push_back(integer_of(value, key));
      } else {
        constexpr bool kTexts = std::is_same_v<T, std::string>;
        COMPACT_CHECK(kTexts ? value.is_string() : value.is_number(), where_, ": ", key,
                      kTexts ? " must have texts, has " : " must have numbers, has ", value.dump());
        values.push_back(value.get<T>());
      }
    }
    return values;
  }
  int64_t integer(const char* key, int64_t fallback) const {
    const nlohmann::json* value = find(key);
    return value ? integer_of(*value, key) : fallback;
  }
  double number(const char* key, double fallback) const {
    const nlohmann::json* value = find(key);
    COMPACT_CHECK(!value || value->is_number(), where_, ": ", key, " must be a number, is ",
                  value->dump());
    return value ? value->get<double>() : fallback;
  }
  bool flag(const char* key, bool fallback) const {
    const nlohmann::json* value = find(key);
    COMPACT_CHECK(!value || value->is_boolean(), where_, ": ", key, " must be true or false, is ",
                  value->dump());
    return value ? value->get<bool>() : fallback;
  }
  std::string text(const char* key, const std::string& fallback) const {
    const nlohmann::json* value = find(key);
    COMPACT_CHECK(!value || value->is_string(), where_, ": ", key, " must be a text, is ",
                  value->dump());
    return value ? value->get<std::string>() : fallback;
  }
  int64_t integer_of(const nlohmann::json& value, const char* key) const {
    // An unsigned value above 2^63 would wrap in get<int64_t>().
    COMPACT_CHECK(value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<uint64_t>() <= kLargest),
                  where_, ": ", key, " must be an integer below 2^63, is ", value.dump());
    return value.get<int64_t>();
  }
  // The id of a token: null says that there is none, a key that is missing what the class has.
  std::optional<int64_t> token(const char* key, std::optional<int64_t> fallback) const {
    if (!has(key)) return fallback;
    return find(key) ? std::optional(integer(key, 0)) : std::nullopt;
  }
  // None, one or several.
  std::vector<int64_t> tokens(const char* key, std::vector<int64_t> fallback) const {
    if (!has(key)) return fallback;
    if (!find(key)) return {};
    if (find(key)->is_array()) return required_list<int64_t>(key);
    return {integer(key, 0)};
  }
  // but_bitsandbytes: for models whose weights may be in its codes (tasks/nf4_folder.h).
  void refuse_quantized(bool but_bitsandbytes = false) const {
    const nlohmann::json* quantization = find("quantization_config");
    if (but_bitsandbytes && quantization && quantization->is_object() &&
        quantization->contains("quant_method") &&
        (*quantization)["quant_method"] == "bitsandbytes") {
      return;
    }
    COMPACT_CHECK(!quantization, where_, ": quantized weights are not supported, ",
                  "quantization_config is ", quantization->dump());
  }
  const std::string& where() const { return where_; }

 private:
  static constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace compact
