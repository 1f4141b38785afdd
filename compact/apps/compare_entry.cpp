// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/compare_entry.h"

#include <algorithm>
#include <filesystem>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/config/option.h"
#include "compact/ops/policy/policy.h"

namespace compact {
namespace {

// Whether a text can be the name of a run and of its folder.
bool is_name(const std::string& text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  return !text.empty() && letter(text[0]) && std::ranges::all_of(text, [&](char c) {
    return letter(c) || c == '.' || c == '_' || c == '-';
  });
}

// The parts between separators outside of quotes, quotes included.
std::vector<std::string> quoted_parts(const std::string& text, std::string_view separators) {
  std::vector<std::string> parts(1);
  char quote = 0;
  for (const char c : text) {
    if (quote == 0 && separators.find(c) != separators.npos) {
      parts.emplace_back();
      continue;
    }
    parts.back() += c;
    if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    }
  }
  COMPACT_CHECK(quote == 0, "--presets: a quote `", quote, "` is not closed in `", text, "`");
  return parts;
}

std::string without_quotes(const std::string& word) {
  std::string bare;
  char quote = 0;
  for (const char c : word) {
    if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else {
      bare += c;
    }
  }
  return bare;
}

// Parses `[NAME=]PRESET` into `entry`. Returns the flags that are set by it.
std::vector<std::string> take_preset(std::string preset, CompareEntry& entry) {
  const size_t equal = preset.find('=');
  if (equal != preset.npos && equal < preset.find('/')) {
    entry.name = preset.substr(0, equal);
    COMPACT_CHECK(is_name(entry.name),
                  "--presets: a name consists of letters, digits, `.`, `_` and `-` and begins with "
                  "one of the first two, is `",
                  entry.name, "`");
    preset = preset.substr(equal + 1);
  }
  TrainConfig& c = entry.config;
  if (preset.find('/') == preset.npos && !preset.ends_with(".policy")) {
    if (preset != "auto") Policy::preset(preset);
    if (entry.name.empty()) entry.name = preset;
    entry.arguments.insert(entry.arguments.end(), {"--preset", preset});
    c.preset = preset;
    return {};
  }
  COMPACT_CHECK(c.policy.empty(), "--presets ", preset, ": --policy ", c.policy,
                " would override it; give one of them");
  Policy::from_file(preset);
  if (entry.name.empty()) entry.name = std::filesystem::path(preset).stem().string();
  entry.arguments.insert(entry.arguments.end(), {"--preset", "off", "--policy", preset});
  c.preset = "off";
  c.policy = preset;
  return {"policy"};
}

// `given`: the run's flags so far.
void take_flag(const std::string& name, std::vector<std::string> values,
               std::vector<std::string>& given, CompareEntry& entry) {
  const std::string source = cat("--presets: ", entry.name, ": --", name);
  COMPACT_CHECK(std::ranges::find(given, name) == given.end(), source, " is given twice");
  given.push_back(name);
  const auto option = std::ranges::find(config_options(), name, &ConfigOption::name);
  const bool known = option != config_options().end();
  COMPACT_CHECK(!known || (option->commands & Commands::kCompared), source,
                " cannot differ from run to run");
  if (values.empty()) {
    COMPACT_CHECK(!known || std::holds_alternative<bool TrainConfig::*>(option->member), source,
                  ": a value is missing");
    values = {"true"};
  }
  COMPACT_CHECK(!values[0].empty(), source, ": its value is empty");
  std::erase_if(entry.arguments,
                [&](const std::string& a) { return a.starts_with(cat("--", name, "=")); });
  const ConfigOption::Member budget = &TrainConfig::budget;
  if (known && option->member == budget && values[0].ends_with("%")) {
    const auto percent = parse_number(values[0].substr(0, values[0].size() - 1));
    COMPACT_CHECK(percent && *percent > 0, source,
                  ": a part of the first run's peak must be a positive number of percent, is `",
                  values[0], "`");
    entry.budget_share = *percent / 100;
    entry.config.budget = "1TiB";  // passes checks; the first run's peak decides the real one
    return;
  }
  set_option(entry.config, name, values, source);
  for (const std::string& v : values) entry.arguments.push_back(cat("--", name, "=", v));
}

}  // namespace

std::vector<std::string> compare_texts(const std::string& presets) {
  return quoted_parts(presets, ",");
}

CompareEntry compare_entry(const std::string& text, const TrainConfig& config,
                           const std::vector<std::string>& arguments) {
  std::vector<std::string> words = quoted_parts(text, " \t\n");
  std::erase(words, "");
  COMPACT_CHECK(!words.empty(), "--presets: a preset is missing beside a comma");
  CompareEntry entry{.config = config, .arguments = arguments};
  std::vector<std::string> given = take_preset(without_quotes(words[0]), entry);
  for (size_t i = 1; i < words.size();) {
    entry.flags += (entry.flags.empty() ? "" : " ") + words[i];
    const std::string word = without_quotes(words[i++]);
    COMPACT_CHECK(word.starts_with("--"), "--presets: ", entry.name, ": `", word,
                  "` is not a flag of train; runs are separated by commas");
    const size_t equal = word.find('=');
    std::vector<std::string> values;
    if (equal != word.npos) values.push_back(word.substr(equal + 1));
    for (; i < words.size() && !words[i].starts_with("--"); ++i) {
      values.push_back(without_quotes(words[i]));
      entry.flags += " " + words[i];
    }
    take_flag(word.substr(2, equal == word.npos ? equal : equal - 2), values, given, entry);
  }
  return entry;
}

}  // namespace compact
