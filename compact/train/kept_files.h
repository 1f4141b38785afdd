// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace compact {

// What lies in the folder of a model that is trained on, and goes along with what is trained, by
// name: generation_config.json, preprocessors, code. Not what a run writes anew (weights,
// config.json, the tokenizer), what a trainer keeps beside, documentation, and folders. A line goes
// to `warnings` for a file that is too large.
std::map<std::string, std::string> kept_files(const std::string& folder,
                                              std::vector<std::string>& warnings);

}  // namespace compact
