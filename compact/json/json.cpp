// SPDX-License-Identifier: Apache-2.0
#include "compact/json/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/file.h"

namespace compact {
using nlohmann::json;

std::string json_reason(const std::exception& error) {
  const std::string text = error.what();
  const size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

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
    fail(where, ": must be valid JSON, ", json_reason(error));
  }
}

json read_json(const std::filesystem::path& path, JsonLimits limits) {
  return parse_json(read_text(path, limits.max_bytes), path.string(), limits);
}

}  // namespace compact
