// SPDX-License-Identifier: Apache-2.0
#include "compact/base/numbered_name.h"

#include "compact/base/text.h"

namespace compact {

NumberedName::NumberedName(std::string_view name) : series(name) {
  const size_t first = name.find('.');
  if (first == name.npos) return;
  const size_t second = name.find('.', first + 1);
  const std::string_view between = name.substr(first + 1, second - first - 1);
  if (!parse_integer(between)) return;
  series = name.substr(0, first);
  number = between;
  if (second != name.npos) rest = name.substr(second + 1);
}

std::string NumberedName::general() const {
  return series + (number.empty() ? "" : ".*") + (rest.empty() ? "" : "." + rest);
}

}  // namespace compact
