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

// The one of `all`, which are objects or pointers to them, with this `name`. Throws InputError
// "`what` `name`; known: ..." where there is none.
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
  std::vector<std::string> known;
  for (const auto& x : all) known.emplace_back(object(x).name);
  fail(what, " `", name, "`", suggestion(name, known));
}

}  // namespace compact
