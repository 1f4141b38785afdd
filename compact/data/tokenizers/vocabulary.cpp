// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/vocabulary.h"

#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/data/files/printable.h"
#include "compact/data/files/utf8.h"

namespace compact {

void Vocabulary::add(std::string token, uint32_t id, const std::string& where) {
  COMPACT_CHECK(id <= kLargestId, where, ": ids must be at most ", kLargestId, ", token `",
                printable(token), "` has ", id);
  if (id >= tokens_.size()) tokens_.resize(id + 1);
  const auto [place, fresh] = ids_.emplace(token, id);
  COMPACT_CHECK(fresh, where, ": tokens must be unique, `", printable(token), "` has the ids ",
                place->second, " and ", id);
  COMPACT_CHECK(tokens_[id].empty(), where, ": ids must be unique, ", id, " is given to `",
                printable(tokens_[id]), "` and `", printable(token), "`");
  tokens_[id] = std::move(token);
}

Vocabulary Vocabulary::from_lines(std::string_view text, const std::string& where) {
  Vocabulary vocabulary;
  uint32_t id = 0;
  for (size_t at = 0; at < text.size(); ++id) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    std::string token = repaired_utf8(line);
    COMPACT_CHECK(token == line, where, ": line ", id + 1, " must be UTF-8");
    vocabulary.add(std::move(token), id, where);
    at = end + 1;
  }
  COMPACT_CHECK(vocabulary.size() > 0, where, ": must have a token a line, is empty");
  return vocabulary;
}

Vocabulary Vocabulary::from_json(const nlohmann::json& object, const std::string& where) {
  COMPACT_CHECK(object.is_object() && !object.empty(), where,
                " must be an object {\"token\": id, ...} and not empty");
  Vocabulary vocabulary;
  for (const auto& [token, id] : object.items()) {
    COMPACT_CHECK(id.is_number_unsigned() && id.get<uint64_t>() <= kLargestId, where,
                  ": ids must be whole numbers from 0 to ", kLargestId, ", token `",
                  printable(token), "` has ", printable(id.dump()));
    vocabulary.add(token, id.get<uint32_t>(), where);
  }
  return vocabulary;
}

std::optional<uint32_t> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace compact
