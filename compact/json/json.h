// SPDX-License-Identifier: Apache-2.0
// JSON text from outside, with limits: every error names the file, the rule and the place.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace compact {

struct JsonLimits {
  int64_t max_bytes = int64_t{32} << 20;
  int max_depth = 64;  // of arrays and objects within each other
};

// Throws InputError beginning with `where` on invalid JSON or UTF-8, a key given twice, or a limit
// passed. Memory is at most about 16 times the text.
nlohmann::json parse_json(std::string_view text, std::string_view where, JsonLimits limits = {});
nlohmann::json read_json(const std::filesystem::path& path, JsonLimits limits = {});

// The message of an error of nlohmann's without its number.
std::string json_reason(const std::exception& error);

}  // namespace compact
