// SPDX-License-Identifier: Apache-2.0
#include "compact/io/json_file.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/file.h"

namespace compact {
namespace {

using nlohmann::json;

// nlohmann's message without its error number.
std::string reason(const json::exception& error) {
  const std::string text = error.what();
  const size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

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

json parse_json(std::string_view text, std::string_view where, JsonLimits limits) {
  COMPACT_CHECK(static_cast<int64_t>(text.size()) <= limits.max_bytes, where,
                ": JSON must be at most ", limits.max_bytes, " bytes, has ", text.size());
  // The JSON reader takes a NUL for the end of the text and would not see what follows.
  COMPACT_CHECK(text.find('\0') == text.npos, where, ": JSON must not have NUL bytes");
  std::vector<std::set<std::string>> keys;  // of the open objects
  int open = 0;
  const auto check = [&](int, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        keys.emplace_back();
        [[fallthrough]];
      case json::parse_event_t::array_start:
        COMPACT_CHECK(++open <= limits.max_depth, where, ": JSON must be at most ",
                      limits.max_depth, " levels deep");
        break;
      case json::parse_event_t::key:
        COMPACT_CHECK(keys.back().insert(parsed.get<std::string>()).second, where,
                      ": JSON keys must be unique, `", parsed.get<std::string>(),
                      "` is given twice");
        break;
      case json::parse_event_t::object_end:
        keys.pop_back();
        [[fallthrough]];
      case json::parse_event_t::array_end:
        --open;
        break;
      case json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    fail(where, ": must be valid JSON, ", reason(error));
  }
}

json read_json(const std::filesystem::path& path, JsonLimits limits) {
  return parse_json(read_text(path, limits.max_bytes), path.string(), limits);
}

std::string json_text(const json& value, std::string_view where, int indent) {
  check_writable(value, where, 0);
  std::string text;
  try {
    text = value.dump(indent) + "\n";
  } catch (const json::exception& error) {
    fail(where, ": cannot be written as JSON, ", reason(error));
  }
  COMPACT_CHECK(static_cast<int64_t>(text.size()) <= JsonLimits{}.max_bytes, where,
                ": JSON must be at most ", JsonLimits{}.max_bytes, " bytes, has ", text.size());
  return text;
}

void write_json(const std::filesystem::path& path, const json& value) {
  write_file_atomically(path, json_text(value, path.string()));
}

}  // namespace compact
