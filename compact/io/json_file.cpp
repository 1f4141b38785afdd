// SPDX-License-Identifier: Apache-2.0
#include "compact/io/json_file.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"

namespace compact {
namespace {

using nlohmann::json;

// Throws where a number is not finite or the depth passes the limit.
void check_writable(const json& value, std::string_view where, int depth) {
  if (value.is_number_float()) {
    COMPACT_CHECK(std::isfinite(value.get<double>()), where,
                  ": JSON numbers must be finite, one is ", value.get<double>());
  }
  if (!value.is_structured()) return;
  COMPACT_CHECK(depth < JsonLimits{}.max_depth, where, ": JSON must be at most ",
                JsonLimits{}.max_depth, " levels deep");
  for (const json& child : value) check_writable(child, where, depth + 1);
}

}  // namespace

std::string json_text(const json& value, std::string_view where, int indent) {
  check_writable(value, where, 0);
  std::string text;
  try {
    text = value.dump(indent) + "\n";
  } catch (const json::exception& error) {
    fail(where, ": cannot be written as JSON, ", json_reason(error));
  }
  COMPACT_CHECK(static_cast<int64_t>(text.size()) <= JsonLimits{}.max_bytes, where,
                ": JSON must be at most ", JsonLimits{}.max_bytes, " bytes, has ", text.size());
  return text;
}

json number_or_null(double value) { return std::isfinite(value) ? json(value) : json(); }

void write_json(const std::filesystem::path& path, const json& value) {
  write_file_atomically(path, json_text(value, path.string()));
}

}  // namespace compact
