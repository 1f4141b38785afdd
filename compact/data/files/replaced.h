// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {

// Invalid text of a file that became U+FFFD: the number of places, and where the first is.
struct Replaced {
  int64_t count = 0;
  std::string first = {};  // "PATH: line 3"

  void add(int64_t more, const std::string& where) {
    if (count == 0 && more > 0) first = where;
    count += more;
  }
  // A warning; empty where there is none.
  std::string line() const {
    if (count == 0) return {};
    std::string line = cat(first, ": invalid UTF-8 or NUL became U+FFFD");
    if (count == 1) return line;
    return line + cat(", as in ", format_count(count - 1), " other place", count == 2 ? "" : "s");
  }
};

}  // namespace compact
