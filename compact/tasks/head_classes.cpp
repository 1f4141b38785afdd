// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/head_classes.h"

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/data/files/printable.h"
#include "compact/tasks/task_model.h"

namespace compact {
namespace {

using Names = std::vector<std::string>;

// Lowers ASCII letters only, which GLUE's classes consist of.
std::string lower_case(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

Names lower_case(Names names) {
  for (std::string& name : names) name = lower_case(std::move(name));
  return names;
}

bool nameless(const Names& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (!names[i].starts_with("LABEL_") && names[i] != std::to_string(i)) return false;
  }
  return true;
}

bool distinct(Names names) {
  std::ranges::sort(names);
  return std::ranges::adjacent_find(names) == names.end();
}

// The place in `order` of each of `names`; empty where they are not the same names.
std::vector<float> places(const Names& names, const Names& order) {
  if (!distinct(order) || !std::ranges::is_permutation(names, order)) return {};
  std::vector<float> found;
  for (const std::string& name : names) {
    found.push_back(static_cast<float>(std::ranges::find(order, name) - order.begin()));
  }
  return found;
}

void renumber(LabelledTexts& texts, const std::vector<float>& to, const Names& names) {
  for (float& label : texts.labels) {
    if (!std::isnan(label)) label = to[static_cast<size_t>(label)];
  }
  texts.class_names = names;
}

std::string listed(const Names& names) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += (i ? ", " : "") + printable(names[i]);
  }
  return text + (names.size() > kMost ? ", ..." : "");
}

std::string outputs(const Names& names) {
  return names.empty() ? std::string("values") : cat(names.size(), " classes");
}

}  // namespace

void take_numbers_of_head(const TrainConfig& c, const Opening& opening, SequenceTexts& texts,
                          std::vector<std::string>& warnings) {
  const auto& first = opening.only_evaluates ? texts.validation : texts.train;
  if (!first || c.model_name_or_path.empty()) return;
  const ModelShape shape = model_of(c)->shape();
  const Names head = shape.regression ? Names() : shape.labels, ours = first->class_names;
  if (head == ours) return;
  if (opening.only_evaluates) {
    COMPACT_CHECK(head.size() == ours.size(), c.model_name_or_path, ": was trained for ",
                  outputs(head), ", the data have ", outputs(ours));
  }
  if (head.empty() || ours.empty()) return;
  if (nameless(head)) {
    if (opening.only_evaluates) {
      warnings.push_back(cat(c.model_name_or_path,
                             " has no names of classes: they are taken to be ", listed(ours),
                             ", in this order"));
    }
    return;
  }
  std::vector<float> to = places(ours, head);
  if (to.empty()) to = places(lower_case(ours), lower_case(head));
  if (!to.empty()) {
    for (auto* part : {&texts.train, &texts.validation, &texts.test}) {
      if (*part) renumber(**part, to, head);
    }
    if (texts.positive) texts.positive = static_cast<size_t>(to[*texts.positive]);
    return;
  }
  const std::string other = cat(c.model_name_or_path, ": was trained for other classes (",
                                listed(head), ") than the data's (", listed(ours), ")");
  if (opening.only_evaluates) fail(other);
  if (head.size() == ours.size()) warnings.push_back(cat(other, ": its head goes on for these"));
}

}  // namespace compact
