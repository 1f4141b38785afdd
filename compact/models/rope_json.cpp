// SPDX-License-Identifier: Apache-2.0
#include "compact/models/rope_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "compact/base/check.h"
#include "compact/models/config_rows.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr const char* kOriginal = "original_max_position_embeddings";

RopeKind read_kind(const ConfigKeys& keys, const RopeForm& form) {
  std::string type = keys.text("rope_type", keys.text("type", ""));
  if (form.phi3 && (type == "su" || type == "yarn")) type = "longrope";
  const RopeKind kind = type.empty() ? RopeKind::kDefault : rope_kind_of(type, keys.where());
  COMPACT_CHECK(!form.phi3 || kind == RopeKind::kDefault || kind == RopeKind::kLongrope,
                keys.where(), ": rope_type must be default or longrope with model_type phi3, is `",
                type, "`");
  return kind;
}

void numbers(ConfigRows& rows, const char* key, std::vector<double>& values) {
  if (rows.reads()) {
    const json& given = rows.given.required(key);
    const bool sound =
        given.is_array() && std::ranges::all_of(given, [](const json& x) { return x.is_number(); });
    COMPACT_CHECK(sound, rows.where(), ": ", key, " must be a list of numbers, is ", given.dump());
    values = given.get<std::vector<double>>();
  }
  rows.put(key, values);
}

// The keys of the rope object, but for theta and the share of a head that is turned. `original`:
// kOriginal as it is beside the object, 0 if missing.
void settings_of(ConfigRows& rows, RopeConfig& rope, int64_t original, int64_t max_positions) {
  const bool yarn = rope.kind == RopeKind::kYarn, longrope = rope.kind == RopeKind::kLongrope,
             llama3 = rope.kind == RopeKind::kLlama3;
  if (rope.kind == RopeKind::kDefault) return;
  rows.number("factor", rope.factor);
  if (yarn || longrope) rows.number("attention_factor", rope.attention_factor);
  if (yarn || longrope || llama3) {
    if (rows.reads()) rope.original_length = original > 0 ? original : max_positions;
    rope.original_length = rows.given.integer(kOriginal, rope.original_length);
    COMPACT_CHECK(original == 0 || rope.original_length == original, rows.where(), ": ", kOriginal,
                  " must be given once, is ", rope.original_length, " and ", original);
    rows.put(kOriginal, rope.original_length);
  }
  if (yarn) {
    rows.number("beta_fast", rope.beta_fast);
    rows.number("beta_slow", rope.beta_slow);
    rows.number("mscale", rope.mscale);
    rows.number("mscale_all_dim", rope.mscale_all_dim);
    rows.flag("truncate", rope.truncate);
  }
  if (longrope) {
    numbers(rows, "short_factor", rope.short_factor);
    numbers(rows, "long_factor", rope.long_factor);
  }
  if (llama3) {
    rows.number("low_freq_factor", rope.low_freq_factor, ConfigRows::kRequired);
    rows.number("high_freq_factor", rope.high_freq_factor, ConfigRows::kRequired);
  }
}

RopeConfig read_object(ConfigRows& rows, const json& object, const RopeForm& form, int64_t original,
                       int64_t max_positions) {
  RopeConfig rope{.kind = read_kind(rows.given, form)}, any = rope;
  ConfigRows known(rows.where());
  for (const char* key : {"rope_type", "type", "rope_theta", "partial_rotary_factor"}) {
    known.put(key, nullptr);
  }
  settings_of(known, any, 0, 0);
  for (const auto& [key, value] : object.items()) {
    COMPACT_CHECK(value.is_null() || known.written().contains(key), rows.where(), ": ", key,
                  " is not a setting of rope_type ", name_of(rope.kind), ", is ", value.dump());
  }
  settings_of(rows, rope, original, max_positions);
  return rope;
}

json to_object(RopeConfig rope) {
  ConfigRows rows("config");
  settings_of(rows, rope, 0, 0);
  json object = {{"rope_type", name_of(rope.kind)}};
  for (const auto& [key, value] : rows.written().items()) {
    if (!value.is_null()) object[key] = value;
  }
  return object;
}

}  // namespace

RopeConfig read_rope(const ConfigKeys& keys, const RopeForm& form, int64_t max_positions) {
  std::optional<RopeConfig> found;
  std::optional<double> theta, partial;
  // The object's own keys take precedence, as in transformers 5.
  const auto take = [](const ConfigKeys& from, const char* key, std::optional<double>& value) {
    if (from.find(key)) value = from.number(key, 0);
  };
  take(keys, "rope_theta", theta);
  take(keys, "partial_rotary_factor", partial);
  constexpr int64_t kPhi3Original = 4096;
  // Beside the object it is read first, as in transformers 5.
  const bool given = keys.find(kOriginal) != nullptr;
  const int64_t original = keys.integer(kOriginal, 0);
  COMPACT_CHECK(!given || original > 0, keys.where(), ": ", kOriginal,
                " must be from 2 to 2147483647, is ", original);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* value = keys.find(key);
    if (!value) continue;
    ConfigRows inner(*value, keys.where() + ": " + key);
    if (value->empty()) continue;
    take(inner.given, "rope_theta", theta);
    take(inner.given, "partial_rotary_factor", partial);
    RopeConfig rope = read_object(inner, *value, form, original, max_positions);
    // The default beside the object precedes what the object says, too.
    if (form.phi3 && !given && rope.original_length > 0) rope.original_length = kPhi3Original;
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
