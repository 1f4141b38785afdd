// SPDX-License-Identifier: Apache-2.0
// JSON to files; what reads it is in base/json.h, which this includes.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "compact/json/json.h"

namespace compact {

// The text of `value` with lines and a last newline. Doubles read back bit for bit. Throws
// InputError beginning with `where` on NaN and infinities (which JSON has no word for), invalid
// UTF-8, and what read_json would refuse for its size or depth. indent < 0: one line.
std::string json_text(const nlohmann::json& value, std::string_view where, int indent = 2);
// A figure that there may not be, as a correlation of constants: null where it is not finite.
nlohmann::json number_or_null(double value);
// Atomically (see atomic_file.h).
void write_json(const std::filesystem::path& path, const nlohmann::json& value);

}  // namespace compact
