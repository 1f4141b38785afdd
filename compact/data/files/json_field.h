// SPDX-License-Identifier: Apache-2.0
// A few fields of a line of JSON, without building the rest of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace compact {

struct JsonField {
  std::string_view name;
  std::string text = {};  // a string's characters, a number as decimal text
  // "a string", "a number", "null", "a truth value", "an object", "an array"; empty: no such field.
  std::string_view kind = {};
};

// Fills `fields` from the object `line`. Where it is no JSON object, returns the rule that does not
// hold in `error` (one line, without the place) and false. If a key is given twice, the last one
// counts. `others` gets other keys of the object, the first 64 of them. With `replaced`, halves of
// pairs of surrogates become U+FFFD and are added to it; without, they are an error.
bool json_fields(std::string_view line, std::span<JsonField> fields,
                 std::vector<std::string>& others, std::string& error, int64_t* replaced = nullptr);

// The string at key `field` of the object `line`; `error` and false as above, also where there is
// no such string.
bool json_text_field(std::string_view line, std::string_view field, std::string& text,
                     std::string& error, int64_t* replaced = nullptr);

}  // namespace compact
