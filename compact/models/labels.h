// SPDX-License-Identifier: Apache-2.0
// The classes of a classifier in Hugging Face's config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compact/io/config_keys.h"

namespace compact {

class ConfigRows;

// From id2label, else num_labels; without either there are two. Throws InputError where ids are not
// 0, 1, ... or names are none.
std::vector<std::string> read_labels(const ConfigKeys& keys);
void write_labels(const std::vector<std::string>& labels, nlohmann::json& config);
// These rows, of 1 to 2^20 labels.
constexpr int64_t kMostLabels = 1 << 20;
void label_rows(ConfigRows& rows, std::vector<std::string>& labels);
// The same of `classes` classes, whose names are none where they are only numbered.
void class_rows(ConfigRows& rows, int64_t& classes, std::vector<std::string>& labels);
// LABEL_0, LABEL_1, ...: what classes without names are called.
std::vector<std::string> numbered_labels(int64_t count);

}  // namespace compact
