// SPDX-License-Identifier: Apache-2.0
// One string field of a line of JSON, without building the rest of it.
#pragma once

#include <string>
#include <string_view>

namespace compact {

// The string at key `field` of the object `line`. Where that fails, returns the rule that does not
// hold in `error` (one line, without the place) and false. Of a key given twice the last counts.
bool json_text_field(std::string_view line, std::string_view field, std::string& text,
                     std::string& error);

}  // namespace compact
