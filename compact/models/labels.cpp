// SPDX-License-Identifier: Apache-2.0
#include "compact/models/labels.h"

#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/models/config_rows.h"

namespace compact {

std::vector<std::string> numbered_labels(int64_t count) {
  std::vector<std::string> labels;
  for (int64_t i = 0; i < count; ++i) labels.push_back(cat("LABEL_", i));
  return labels;
}

std::vector<std::string> read_labels(const ConfigKeys& keys) {
  std::vector<std::string> labels;
  if (const nlohmann::json* names = keys.find("id2label")) {
    COMPACT_CHECK(names->is_object(), keys.where(), ": id2label must be an object, is ",
                  names->dump());
    labels.resize(names->size());
    for (const auto& [id, name] : names->items()) {
      const std::optional<int64_t> number = parse_integer(id);
      COMPACT_CHECK(number && *number >= 0 && *number < static_cast<int64_t>(labels.size()) &&
                        name.is_string() && labels[*number].empty(),
                    keys.where(), ": id2label must name the labels from 0 on, has \"", id,
                    "\": ", name.dump());
      labels[*number] = name.get<std::string>();
    }
    return labels;
  }
  const int64_t count = keys.integer("num_labels", 2);
  COMPACT_CHECK(count >= 1 && count <= kMostLabels, keys.where(),
                ": num_labels must be from 1 to 2^20, is ", count);
  return numbered_labels(count);
}

void write_labels(const std::vector<std::string>& labels, nlohmann::json& config) {
  nlohmann::json id2label = nlohmann::json::object(), label2id = nlohmann::json::object();
  for (size_t i = 0; i < labels.size(); ++i) {
    id2label[cat(i)] = labels[i];
    label2id[labels[i]] = i;
  }
  config["id2label"] = id2label;
  config["label2id"] = label2id;
}

void label_rows(ConfigRows& rows, std::vector<std::string>& labels) {
  if (rows.reads()) labels = read_labels(rows.given);
  COMPACT_CHECK(!labels.empty() && labels.size() <= size_t{kMostLabels}, rows.where(),
                ": the number of labels must be from 1 to ", kMostLabels, ", is ", labels.size());
  write_labels(labels, rows.written());
}

void class_rows(ConfigRows& rows, int64_t& classes, std::vector<std::string>& labels) {
  if (labels.empty()) labels = numbered_labels(classes);
  label_rows(rows, labels);
  classes = static_cast<int64_t>(labels.size());
  if (labels == numbered_labels(classes)) labels.clear();
}

}  // namespace compact
