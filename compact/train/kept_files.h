// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace compact {

// What lies in the folder of a model that is trained on, and goes along with what is trained, by
// name: generation_config.json, preprocessors, code, licences: small .json, .py, .txt and .jinja,
// also in the folders in it (1_Pooling/config.json). Where the tokenizer is its own these are its
// files, too: tokenizer.model beside a tokenizer.json, further chat templates. Not what is in
// `written` already or a run writes itself, weights, what says how other weights are read
// (adapters, quantization), and what a trainer keeps beside. A line goes to `warnings` for what is
// beyond 8 MiB in all, for what cannot be read, and for folders with weights or many files.
std::map<std::string, std::string> kept_files(const std::string& folder,
                                              const std::map<std::string, std::string>& written,
                                              bool own_tokenizer,
                                              std::vector<std::string>& warnings);

}  // namespace compact
