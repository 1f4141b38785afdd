// SPDX-License-Identifier: Apache-2.0
// Values at and beyond the edges of what an option takes, from its row.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compact/config/option.h"

namespace compact {

// Texts that the row refuses, each with the rule that the message names.
inline std::vector<std::pair<std::string, std::string>> wrong_values(const ConfigOption& o) {
  std::vector<std::pair<std::string, std::string>> wrong;
  const bool whole = std::holds_alternative<int64_t TrainConfig::*>(o.member);
  const double step = whole ? 1 : 0.125;
  const std::string usual = option_text({}, o);
  const auto add = [&](double x) {
    const std::string text = whole ? std::to_string(static_cast<int64_t>(x)) : number_text(x);
    if (text != usual) wrong.emplace_back(text, "must be " + o.range.rule());
  };
  if (o.range.least > -ValueRange::kNone) {
    if (o.range.above) add(o.range.least);
    add(o.range.least - step);
    add(o.range.least - 1000);
  }
  if (o.range.most < ValueRange::kNone) {
    if (o.range.below) add(o.range.most);
    add(o.range.most + step);
    add(o.range.most * 1000);
  }
  if (!o.choices.empty()) wrong.emplace_back("no-such-word", "no such value");
  if (o.form.holds) wrong.emplace_back("no-such-form", "must be " + o.form.rule);
  return wrong;
}

// Texts that the row takes: the edges of its range, all of its words, its default (of a list none).
inline std::vector<std::string> right_values(const ConfigOption& o) {
  std::vector<std::string> right;
  if (!std::holds_alternative<std::vector<std::string> TrainConfig::*>(o.member)) {
    right.push_back(option_text({}, o));
  }
  if (o.range.least > -ValueRange::kNone && !o.range.above)
    right.push_back(number_text(o.range.least));
  if (o.range.most < ValueRange::kNone && !o.range.below)
    right.push_back(number_text(o.range.most));
  for (const Choice& c : o.choices) {
    right.push_back(c.name);
    right.insert(right.end(), c.also.begin(), c.also.end());
  }
  return right;
}

}  // namespace compact
