// SPDX-License-Identifier: Apache-2.0
// The names that the program knows: the tables of `compact list`.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace compact::cli {

struct ListKind {
  using Rows = std::vector<std::pair<std::string, std::string>>;  // name, summary
  const char* name;                                               // models
  Rows (*rows)();
};
std::span<const ListKind> list_kinds();

}  // namespace compact::cli
