// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace compact {

// The files in the folder of a model that go along with the model trained from it, by name:
// generation_config.json, preprocessors, code, licences: small .json, .py, .txt and .jinja, also in
// subfolders (1_Pooling/config.json). Where the tokenizer is the model's own, its files, too:
// tokenizer.model beside a tokenizer.json, further chat templates. Without files that are in
// `written` or that a run writes itself, weights, files that say how other weights are read
// (adapters, quantization), and a trainer's own. Adds a line to `warnings` for files beyond 8 MiB
// in all, for files that cannot be read, and for folders with weights or many files.
std::map<std::string, std::string> kept_files(const std::string& folder,
                                              const std::map<std::string, std::string>& written,
                                              bool own_tokenizer,
                                              std::vector<std::string>& warnings);

}  // namespace compact
