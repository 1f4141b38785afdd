// SPDX-License-Identifier: Apache-2.0
#include "compact/base/spec.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {

Spec Spec::parse(std::string_view text) {
  text = trim(text);
  Spec spec;
  const size_t colon = text.find(':');
  spec.name = std::string(trim(text.substr(0, colon)));
  COMPACT_CHECK(!spec.name.empty(), "a spec needs a name before `:`, got `", text, "`");
  if (colon == text.npos) return spec;
  for (const std::string& part : split(text.substr(colon + 1), ',')) {
    const size_t equals = part.find('=');
    COMPACT_CHECK(equals != part.npos && equals > 0, "`", spec.name, "` takes key=value, got `",
                  part, "` in `", text, "`");
    const std::string key(trim(std::string_view(part).substr(0, equals)));
    COMPACT_CHECK(!spec.has(key), "`", key, "` is given twice in `", text, "`");
    spec.values.emplace_back(key, trim(std::string_view(part).substr(equals + 1)));
  }
  return spec;
}

std::vector<Spec> Spec::parse_chain(std::string_view text) {
  std::vector<Spec> chain;
  for (const std::string& part : split(text, '+')) chain.push_back(parse(part));
  return chain;
}

std::string Spec::chain_str(const std::vector<Spec>& chain) {
  std::string text;
  for (const Spec& spec : chain) text += (text.empty() ? "" : "+") + spec.str();
  return text;
}

bool Spec::has(std::string_view key) const {
  return std::any_of(values.begin(), values.end(), [&](const auto& v) { return v.first == key; });
}

void Spec::set(std::string_view key, std::string_view value) {
  for (auto& v : values) {
    if (v.first == key) {
      v.second = value;
      return;
    }
  }
  values.emplace_back(key, value);
}

std::string Spec::text(std::string_view key, std::string_view fallback) const {
  for (const auto& v : values) {
    if (v.first == key) return v.second;
  }
  return std::string(fallback);
}

double Spec::number(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  const auto value = parse_number(text(key, ""));
  COMPACT_CHECK(value, "`", name, ":", key, "` must be a finite number, is `", text(key, ""), "`");
  return *value;
}

int64_t Spec::integer(std::string_view key, int64_t fallback) const {
  if (!has(key)) return fallback;
  const auto value = parse_integer(text(key, ""));
  COMPACT_CHECK(value, "`", name, ":", key, "` must be an integer, is `", text(key, ""), "`");
  return *value;
}

bool Spec::flag(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  const std::string value = text(key, "");
  if (value == "true" || value == "1") return true;
  COMPACT_CHECK(value == "false" || value == "0", "`", name, ":", key,
                "` must be true or false, is `", value, "`");
  return false;
}

void Spec::allow(std::initializer_list<std::string_view> known) const {
  const std::vector<std::string> names(known.begin(), known.end());
  for (const auto& v : values) {
    COMPACT_CHECK(std::find(names.begin(), names.end(), v.first) != names.end(), "`", name,
                  "` has no setting `", v.first, "`", suggestion(v.first, names));
  }
}

std::string Spec::str() const {
  std::string out = name;
  for (size_t i = 0; i < values.size(); ++i) {
    out += (i ? "," : ":") + values[i].first + "=" + values[i].second;
  }
  return out;
}

}  // namespace compact
