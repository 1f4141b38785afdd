// SPDX-License-Identifier: Apache-2.0
#include "compact/config/config.h"

#include <nlohmann/json.hpp>

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/config/option.h"
#include "compact/io/json_file.h"

namespace compact {
namespace {

std::string toml_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 32 || c == 127) {
      out += formatted("\\u%04x", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// A number, true or false. Whole numbers beyond TOML's integers (over 64 bits, -0) become floats.
std::string toml_literal(const std::string& text) {
  const bool whole = text.find_first_not_of("-0123456789") == std::string::npos;
  const auto integer = parse_integer(text);
  return whole && (!integer || std::to_string(*integer) != text) ? text + ".0" : text;
}

// Values of a TOML or JSON entry as text.
std::vector<std::string> texts_of(const toml::node& node, const std::string& source) {
  if (const auto* list = node.as_array()) {
    std::vector<std::string> all;
    for (const toml::node& item : *list) {
      COMPACT_CHECK(item.is_string(), source, ": a list holds strings");
      all.push_back(*item.value<std::string>());
    }
    return all;
  }
  if (const auto s = node.as_string()) return {s->get()};
  if (const auto i = node.as_integer()) return {std::to_string(i->get())};
  if (const auto b = node.as_boolean()) return {b->get() ? "true" : "false"};
  if (const auto d = node.as_floating_point()) return {number_text(d->get())};
  fail(source, ": expected a string, a number, true, false or a list of strings");
}

std::vector<std::string> texts_of(const nlohmann::json& value, const std::string& source) {
  if (value.is_array()) {
    std::vector<std::string> all;
    for (const auto& item : value) {
      COMPACT_CHECK(item.is_string(), source, ": a list holds strings");
      all.push_back(item.get<std::string>());
    }
    return all;
  }
  if (value.is_string()) return {value.get<std::string>()};
  if (value.is_boolean()) return {value.get<bool>() ? "true" : "false"};
  if (value.is_number_unsigned()) return {std::to_string(value.get<uint64_t>())};
  if (value.is_number_integer()) return {std::to_string(value.get<int64_t>())};
  if (value.is_number_float()) return {number_text(value.get<double>())};
  fail(source, ": expected a string, a number, true, false or a list of strings");
}

void read_config_json(TrainConfig& config, const std::string& text, const std::string& source) {
  const nlohmann::json json = parse_json(text, source);
  COMPACT_CHECK(json.is_object(), source, ": must be a JSON object of option names");
  for (const auto& [key, value] : json.items()) {
    set_option(config, key, texts_of(value, source + ": " + key), source + ": " + key);
  }
}

}  // namespace

void read_config_file(TrainConfig& config, const std::string& path) {
  constexpr int64_t kMostBytes = 1 << 20;
  if (path.ends_with(".json")) return read_config_json(config, read_text(path, kMostBytes), path);
  COMPACT_CHECK(path.ends_with(".toml"), path, ": a configuration file ends in .toml or .json");
  const std::string text = read_text(path, kMostBytes);
  try {
    const toml::table table = toml::parse(text);
    for (const auto& [key, value] : table) {
      const std::string source = path + ": " + std::string(key.str());
      set_option(config, key.str(), texts_of(value, source), source);
    }
  } catch (const toml::parse_error& e) {
    fail(path, ":", e.source().begin.line, ": ", e.description());
  }
}

std::string config_toml(const TrainConfig& config) {
  std::string out, group;
  for (const ConfigOption& option : config_options()) {
    if (option.group != group) {
      group = option.group;
      out += (out.empty() ? "# " : "\n# ") + group + "\n";
    }
    out += option.name + " = ";
    if (const auto* list = std::get_if<std::vector<std::string> TrainConfig::*>(&option.member)) {
      out += "[";
      for (size_t i = 0; i < (config.**list).size(); ++i) {
        out += (i ? ", " : "") + toml_quoted((config.**list)[i]);
      }
      out += "]\n";
    } else if (std::holds_alternative<std::string TrainConfig::*>(option.member)) {
      out += toml_quoted(option_text(config, option)) + "\n";
    } else {
      out += toml_literal(option_text(config, option)) + "\n";
    }
  }
  return out;
}

std::string config_json(const TrainConfig& config) {
  nlohmann::ordered_json json;
  for (const ConfigOption& option : config_options()) {
    std::visit([&](auto member) { json[option.name] = config.*member; }, option.member);
  }
  return json.dump(2);
}

TrainConfig config_from_json(const std::string& text, const std::string& source) {
  TrainConfig config;
  read_config_json(config, text, source);
  return config;
}

}  // namespace compact
