// SPDX-License-Identifier: Apache-2.0
// The folder that python/compact/prepare writes: a card of what was done, a token file, and the
// files of the tokenizer with which transformers made its ids.
#pragma once

#include <string>

namespace compact {

constexpr const char* kPreparedCard = "prepared.json";
constexpr const char* kPreparedTokens = "samples.tokens";

bool is_prepared_folder(const std::string& path);

}  // namespace compact
