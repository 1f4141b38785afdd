// SPDX-License-Identifier: Apache-2.0
// Look-up in a list of things that have a name.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {

// The names of `all`, which are objects or pointers to them.
template <class List>
std::vector<std::string> names_of(const List& all) {
  std::vector<std::string> names;
  for (const auto& x : all) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(x)>>) {
      names.emplace_back(x->name);
    } else {
      names.emplace_back(x.name);
    }
  }
  return names;
}

// The one of `all` with this `name`. Throws InputError "`what` `name`; known: ..." where there is
// none.
template <class List>
const auto& named(const List& all, std::string_view name, const std::string& what) {
  const auto object = [](const auto& x) -> const auto& {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(x)>>) {
      return *x;
    } else {
      return x;
    }
  };
  for (const auto& x : all) {
    if (object(x).name == name) return object(x);
  }
  fail(what, " `", name, "`", suggestion(name, names_of(all)));
}

}  // namespace compact
