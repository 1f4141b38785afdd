// SPDX-License-Identifier: Apache-2.0
// Keys of Hugging Face's config.json, with the type that each must have. Inside io/ only.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

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

  int64_t required_integer(const char* key) const {
    const nlohmann::json* value = find(key);
    COMPACT_CHECK(value, where_, ": ", key, " must be given");
    return integer_of(*value, key);
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
  void refuse_quantized() const {
    const nlohmann::json* quantization = find("quantization_config");
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
