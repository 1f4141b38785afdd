// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace compact {

// What lies in the folder of a model that is trained on, and goes along with what is trained, by
// name: generation_config.json, preprocessors, code: small .json, .py, .txt and .jinja. Not what a
// run writes again (config.json, the tokenizer), what says how other weights are read (adapters,
// quantization), what a trainer keeps beside, and folders. A line goes to `warnings` for what is
// beyond 8 MiB in all, and for what cannot be read.
std::map<std::string, std::string> kept_files(const std::string& folder,
                                              std::vector<std::string>& warnings);

}  // namespace compact
