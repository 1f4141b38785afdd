// SPDX-License-Identifier: Apache-2.0
// The tokens of a tokenizer and their ids, each once. Ids may have gaps.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace compact {

class Vocabulary {
 public:
  static constexpr uint32_t kLargestId = (1u << 22) - 1;

  Vocabulary() = default;
  // A line of vocab.txt is a token, its number the id. `where` begins every error.
  static Vocabulary from_lines(std::string_view text, const std::string& where);
  // {"token": id, ...}
  static Vocabulary from_json(const nlohmann::json& object, const std::string& where);

  // Throws InputError where the token or the id is there already, or the id is too large.
  void add(std::string token, uint32_t id, const std::string& where);

  std::optional<uint32_t> find(std::string_view token) const;
  // The token, empty in a gap; nullptr past the end.
  const std::string* token(uint32_t id) const {
    return id < tokens_.size() ? &tokens_[id] : nullptr;
  }
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }  // largest id + 1
  int64_t count() const { return static_cast<int64_t>(ids_.size()); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::vector<std::string> tokens_;  // by id
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> ids_;
};

}  // namespace compact
