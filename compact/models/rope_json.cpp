// SPDX-License-Identifier: Apache-2.0
#include "compact/models/rope_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace compact {
namespace {

using nlohmann::json;

constexpr const char* kOriginal = "original_max_position_embeddings";

std::vector<std::string> keys_of(RopeKind kind) {
  std::vector<std::string> keys = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  const auto add = [&](std::initializer_list<const char*> more) {
    keys.insert(keys.end(), more.begin(), more.end());
  };
  if (kind != RopeKind::kDefault) add({"factor"});
  if (kind == RopeKind::kYarn) {
    add({kOriginal, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
         "truncate"});
  }
  if (kind == RopeKind::kLongrope) {
    add({kOriginal, "attention_factor", "short_factor", "long_factor"});
  }
  if (kind == RopeKind::kLlama3) add({kOriginal, "low_freq_factor", "high_freq_factor"});
  return keys;
}

RopeKind read_kind(const ConfigKeys& keys, const RopeForm& form) {
  std::string type = keys.text("rope_type", keys.text("type", ""));
  if (form.phi3 && (type == "su" || type == "yarn")) type = "longrope";
  const RopeKind kind = type.empty() ? RopeKind::kDefault : rope_kind_of(type, keys.where());
  COMPACT_CHECK(!form.phi3 || kind == RopeKind::kDefault || kind == RopeKind::kLongrope,
                keys.where(), ": rope_type must be default or longrope with model_type phi3, is `",
                type, "`");
  return kind;
}

std::optional<double> read_number(const ConfigKeys& keys, const char* key) {
  if (!keys.find(key)) return std::nullopt;
  return keys.number(key, 0);
}

double required_number(const ConfigKeys& keys, const char* key) {
  COMPACT_CHECK(keys.find(key), keys.where(), ": ", key, " must be given");
  return keys.number(key, 0);
}

std::vector<double> required_numbers(const ConfigKeys& keys, const char* key) {
  const json* value = keys.find(key);
  COMPACT_CHECK(value, keys.where(), ": ", key, " must be given");
  const bool numbers =
      value->is_array() && std::ranges::all_of(*value, [](const json& x) { return x.is_number(); });
  COMPACT_CHECK(numbers, keys.where(), ": ", key, " must be a list of numbers, is ", value->dump());
  return value->get<std::vector<double>>();
}

// What an object says, but theta and how much of a head is turned.
RopeConfig read_object(const ConfigKeys& keys, const json& object, const RopeForm& form,
                       int64_t original, int64_t max_positions) {
  RopeConfig rope;
  rope.kind = read_kind(keys, form);
  const std::vector<std::string> known = keys_of(rope.kind);
  for (const auto& [key, value] : object.items()) {
    COMPACT_CHECK(value.is_null() || std::ranges::find(known, key) != known.end(), keys.where(),
                  ": ", key, " is no setting of rope_type ", name_of(rope.kind), ", is ",
                  value.dump());
  }
  if (rope.kind == RopeKind::kDefault) return rope;
  rope.factor = read_number(keys, "factor");
  rope.attention_factor = read_number(keys, "attention_factor");
  if (rope.kind == RopeKind::kYarn || rope.kind == RopeKind::kLongrope ||
      rope.kind == RopeKind::kLlama3) {
    rope.original_length = keys.integer(kOriginal, original > 0 ? original : max_positions);
    COMPACT_CHECK(original == 0 || rope.original_length == original, keys.where(), ": ", kOriginal,
                  " must be given once, is ", rope.original_length, " and ", original);
  }
  if (rope.kind == RopeKind::kYarn) {
    rope.beta_fast = keys.number("beta_fast", rope.beta_fast);
    rope.beta_slow = keys.number("beta_slow", rope.beta_slow);
    rope.mscale = read_number(keys, "mscale");
    rope.mscale_all_dim = read_number(keys, "mscale_all_dim");
    rope.truncate = keys.flag("truncate", rope.truncate);
  }
  if (rope.kind == RopeKind::kLongrope) {
    rope.short_factor = required_numbers(keys, "short_factor");
    rope.long_factor = required_numbers(keys, "long_factor");
  }
  if (rope.kind == RopeKind::kLlama3) {
    rope.low_freq_factor = required_number(keys, "low_freq_factor");
    rope.high_freq_factor = required_number(keys, "high_freq_factor");
  }
  return rope;
}

json to_object(const RopeConfig& rope) {
  json object = {{"rope_type", name_of(rope.kind)}};
  const auto put = [&](const char* key, const std::optional<double>& value) {
    if (value) object[key] = *value;
  };
  put("factor", rope.factor);
  put("attention_factor", rope.attention_factor);
  put("mscale", rope.mscale);
  put("mscale_all_dim", rope.mscale_all_dim);
  if (rope.original_length > 0) object[kOriginal] = rope.original_length;
  if (rope.kind == RopeKind::kYarn) {
    object["beta_fast"] = rope.beta_fast;
    object["beta_slow"] = rope.beta_slow;
    object["truncate"] = rope.truncate;
  }
  if (rope.kind == RopeKind::kLongrope) {
    object["short_factor"] = rope.short_factor;
    object["long_factor"] = rope.long_factor;
  }
  if (rope.kind == RopeKind::kLlama3) {
    object["low_freq_factor"] = rope.low_freq_factor;
    object["high_freq_factor"] = rope.high_freq_factor;
  }
  return object;
}

}  // namespace

RopeConfig read_rope(const ConfigKeys& keys, const RopeForm& form, int64_t max_positions) {
  std::optional<RopeConfig> found;
  std::optional<double> theta, partial;
  // What stands in the object holds, as in transformers 5.
  const auto take = [](const ConfigKeys& from, const char* key, std::optional<double>& value) {
    if (const std::optional<double> given = read_number(from, key)) value = given;
  };
  take(keys, "rope_theta", theta);
  take(keys, "partial_rotary_factor", partial);
  constexpr int64_t kPhi3Original = 4096;
  // Beside the object it is read first, as in transformers 5.
  const bool given = keys.find(kOriginal) != nullptr;
  const int64_t original = keys.integer(kOriginal, form.phi3 ? kPhi3Original : 0);
  COMPACT_CHECK(!(form.phi3 || given) || original > 0, keys.where(), ": ", kOriginal,
                " must be from 2 to 2147483647, is ", original);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* value = keys.find(key);
    if (!value) continue;
    const ConfigKeys inner(*value, keys.where() + ": " + key);
    if (value->empty()) continue;
    take(inner, "rope_theta", theta);
    take(inner, "partial_rotary_factor", partial);
    RopeConfig rope = read_object(inner, *value, form, original, max_positions);
    COMPACT_CHECK(!found || *found == rope, keys.where(),
                  ": rope_scaling and rope_parameters must agree, or one of them be left out");
    found = std::move(rope);
  }
  RopeConfig rope = std::move(found).value_or(RopeConfig{});
  rope.theta = theta.value_or(form.theta);
  rope.partial = partial.value_or(1);
  COMPACT_CHECK(form.phi3 || rope.partial == 1, keys.where(),
                ": partial_rotary_factor must be 1 with this model_type, is ", rope.partial);
  return rope;
}

void write_rope(const RopeConfig& rope, const RopeForm& form, json& config) {
  json object = to_object(rope);
  config["rope_theta"] = rope.theta;
  if (form.phi3) {
    config["partial_rotary_factor"] = rope.partial;
    if (rope.original_length > 0) config[kOriginal] = rope.original_length;
  }
  if (rope.kind != RopeKind::kDefault) {
    json scaling = object;
    if (form.phi3) {  // transformers 4 takes no more
      scaling["type"] = scaling["rope_type"];
      scaling.erase("rope_type");
      scaling.erase(kOriginal);
    }
    config["rope_scaling"] = scaling;
  }
  object["rope_theta"] = rope.theta;
  if (rope.partial != 1) object["partial_rotary_factor"] = rope.partial;
  config["rope_parameters"] = object;
}

}  // namespace compact
