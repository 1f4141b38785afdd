// SPDX-License-Identifier: Apache-2.0
#include "compact/config/option.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <type_traits>

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/base/text.h"
#include "compact/config/option_groups_impl.h"
#include "compact/config/other_names.h"

namespace compact {
namespace {

const TrainConfig& usual() {
  static const TrainConfig config;
  return config;
}

// The choice's own name for `word`, which may be another word for it.
std::string full_name(std::span<const Choice> choices, const std::string& word) {
  for (const Choice& c : choices) {
    if (std::ranges::find(c.also, word) != c.also.end()) return c.name;
  }
  return word;
}

// The value of an option that is an int64_t or a double; nullopt for others.
std::optional<double> number_of(const TrainConfig& config, const ConfigOption& option) {
  return std::visit(
      [&](auto member) -> std::optional<double> {
        using T = std::remove_cvref_t<decltype(config.*member)>;
        if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
          return static_cast<double>(config.*member);
        } else {
          return std::nullopt;
        }
      },
      option.member);
}

void check_value(const TrainConfig& config, const ConfigOption& o) {
  const std::string text = option_text(config, o);
  if (const auto number = number_of(config, o)) {
    const bool default_outside = !o.range.holds(*number_of(usual(), o));
    COMPACT_CHECK(o.range.holds(*number), "--", o.name, " must be ", o.range.rule(),
                  default_outside ? ", or " + option_text(usual(), o) : "", ", is ", text);
  }
  if (!o.choices.empty()) {
    const std::vector<std::string> known = names_of(o.choices);
    const std::string here = name_here(cat(o.name, " ", text));
    COMPACT_CHECK(std::ranges::find(known, text) != known.end(), "--", o.name, ": no such value `",
                  text, "`", here.empty() ? suggestion(text, known) : ": " + here);
  }
  COMPACT_CHECK(!o.form.holds || o.form.holds(text), "--", o.name, " must be ", o.form.rule,
                ", is `", text, "`");
}

}  // namespace

std::span<const ConfigOption> config_options() {
  static const std::vector<ConfigOption> all = [] {
    std::vector<ConfigOption> rows;
    for (OptionGroup& group :
         std::vector{options_of_model(), options_of_adapters(), options_of_data(),
                     options_of_length(), options_of_optimizer(), options_of_machine(),
                     options_of_memory(), options_of_output()}) {
      for (ConfigOption& row : group.rows) {
        row.group = group.name;
        rows.push_back(std::move(row));
      }
    }
    return rows;
  }();
  return all;
}

bool ValueRange::holds(double x) const {
  return (above ? x > least : x >= least) && (below ? x < most : x <= most);
}

std::string ValueRange::rule() const {
  const std::string low = number_text(least), high = number_text(most);
  if (below) return cat("in [", low, ", ", high, ")");
  if (above) return most < kNone ? "positive and at most " + high : "positive";
  return most < kNone ? cat("from ", low, " to ", high) : "at least " + low;
}

const std::string& help_of(const ConfigOption& option, uint32_t command) {
  for (const ConfigOption::OtherHelp& other : option.elsewhere) {
    if (other.commands & command) return other.help;
  }
  return option.help;
}

std::string values_of(const ConfigOption& o) {
  if (!o.values.empty()) return o.values;
  if (std::holds_alternative<int64_t TrainConfig::*>(o.member)) return "N";
  if (std::holds_alternative<double TrainConfig::*>(o.member)) {
    if (o.range.most == ValueRange::kNone) return "X";
    return cat(number_text(o.range.least), o.range.above ? " < x" : " <= x",
               o.range.below ? " < " : " <= ", number_text(o.range.most));
  }
  std::string text;
  for (const Choice& c : o.choices) {
    text += (text.empty() ? "" : ", ") + c.name;
    for (const std::string& word : c.also) text += (&word == &c.also[0] ? " (" : ", ") + word;
    if (!c.also.empty()) text += ")";
  }
  return text;
}

void set_option(TrainConfig& config, std::string_view name, const std::vector<std::string>& values,
                const std::string& source) {
  const bool known =
      std::ranges::any_of(config_options(), [&](const auto& o) { return o.name == name; });
  const std::string here = known ? "" : name_here(name);
  COMPACT_CHECK(here.empty(), source, ": unknown option `", name, "`: ", here);
  const ConfigOption& option = named(config_options(), name, source + ": unknown option");
  std::visit(
      [&](auto member) {
        using T = std::remove_reference_t<decltype(config.*member)>;
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          COMPACT_CHECK(std::ranges::find(values, "") == values.end(), source,
                        ": a value is empty");
          config.*member = values;
        } else {
          COMPACT_CHECK(values.size() == 1, source, ": takes one value, got ", values.size());
          const std::string& text = values[0];
          COMPACT_CHECK(!text.empty() || option_text(usual(), option).empty(), source,
                        ": its value is empty");
          if constexpr (std::is_same_v<T, std::string>) {
            config.*member = full_name(option.choices, text);
          } else if constexpr (std::is_same_v<T, bool>) {
            COMPACT_CHECK(text == "true" || text == "false" || text == "1" || text == "0", source,
                          ": must be true or false, is `", text, "`");
            config.*member = text == "true" || text == "1";
          } else if constexpr (std::is_same_v<T, int64_t>) {
            const auto number = parse_integer(text);
            COMPACT_CHECK(number, source, ": must be an integer, is `", text, "`");
            config.*member = *number;
          } else {
            const auto number = parse_number(text);
            COMPACT_CHECK(number, source, ": must be a finite number, is `", text, "`");
            config.*member = *number;
          }
        }
      },
      option.member);
}

std::string option_text(const TrainConfig& config, const ConfigOption& option) {
  return std::visit(
      [&](auto member) -> std::string {
        const auto& value = config.*member;
        using T = std::remove_cvref_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          std::string all;
          for (const std::string& v : value) all += (all.empty() ? "" : " ") + v;
          return all;
        } else if constexpr (std::is_same_v<T, std::string>) {
          return value;
        } else if constexpr (std::is_same_v<T, bool>) {
          return value ? "true" : "false";
        } else if constexpr (std::is_same_v<T, int64_t>) {
          return std::to_string(value);
        } else {
          return number_text(value);
        }
      },
      option.member);
}

std::string number_text(double x) {
  char out[40];
  return {out, std::to_chars(out, std::end(out), x).ptr};
}

bool is_given(const TrainConfig& config, const ConfigOption& option) {
  return option_text(config, option) != option_text(usual(), option);
}

void check_values(const TrainConfig& config) {
  for (const ConfigOption& option : config_options()) {
    if (is_given(config, option)) check_value(config, option);
  }
}

std::vector<std::string> ignored_options(const TrainConfig& config) {
  std::vector<std::string> lines;
  // Empty where `value` is one of them, else all of them.
  const auto unless = [](const std::string& value, const std::vector<std::string>& values) {
    std::string all;
    if (std::ranges::find(values, value) != values.end()) return all;
    for (const std::string& v : values) all += (all.empty() ? "" : ", ") + v;
    return all;
  };
  for (const ConfigOption& option : config_options()) {
    if (!is_given(config, option)) continue;
    std::string readers = unless(config.task, option.tasks);
    if (const auto& [other, values] = option.beside; !other.empty()) {
      const ConfigOption& row = named(config_options(), other, "option");
      const std::string wanted = unless(option_text(config, row), values);
      if (!wanted.empty()) readers = cat("--", other, " ", wanted);
    }
    if (!readers.empty())
      lines.push_back(cat("--", option.name, " takes no effect: it is for ", readers));
  }
  return lines;
}

std::span<const Choice> element_types() {
  static const Choice all[] = {{"float32", {"f32", "fp32"}}, {"bfloat16", {"bf16"}}, {"float8"}};
  return all;
}

std::string type_name(const std::string& name) { return full_name(element_types(), name); }

}  // namespace compact
