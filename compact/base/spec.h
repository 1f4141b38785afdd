// SPDX-License-Identifier: Apache-2.0
// Spec strings: `name:key=value,key=value`, joined by `+`. One syntax for treatments, gradients,
// moments, codecs, projections and tokenizers, in flags, files, logs and checkpoints.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace compact {

class Spec {
 public:
  std::string name;
  std::vector<std::pair<std::string, std::string>> values;  // in the order written

  // Parses one spec. Throws InputError on an empty name, a key without value or a repeated key.
  static Spec parse(std::string_view text);
  // Parses specs joined by `+`. The last value of a spec may hold a path with any other character.
  static std::vector<Spec> parse_chain(std::string_view text);

  // Text that parses to the same chain.
  static std::string chain_str(const std::vector<Spec>& chain);

  // The value of `key`, or `fallback`. Throws InputError where the text is not such a number.
  std::string text(std::string_view key, std::string_view fallback) const;
  double number(std::string_view key, double fallback) const;
  int64_t integer(std::string_view key, int64_t fallback) const;
  bool flag(std::string_view key, bool fallback) const;  // true|false|1|0
  bool has(std::string_view key) const;
  void set(std::string_view key, std::string_view value);

  // Throws InputError, with a suggestion, if a key is none of `known`.
  void allow(std::initializer_list<std::string_view> known) const;
  // The canonical text: parse(s.str()) == s.
  std::string str() const;
  bool operator==(const Spec&) const = default;
};

}  // namespace compact
