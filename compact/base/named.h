// SPDX-License-Identifier: Apache-2.0
// Look-up in a list of things that have a name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {

// An element of a list of objects or of pointers to them.
template <class T>
const auto& element(const T& x) {
  if constexpr (std::is_pointer_v<T>) {
    return *x;
  } else {
    return x;
  }
}

// The names of `all`, which are objects or pointers to them, in their order.
template <class List>
std::vector<std::string> names_of(const List& all) {
  std::vector<std::string> names;
  for (const auto& x : all) names.emplace_back(element(x).name);
  return names;
}

// The element of `all` with this `name`. Throws InputError "`what` `name`; known: ..." where there
// is none. Takes a span by value, since the result lives as long as the list that it views.
template <class T>
const auto& named(std::span<T> all, std::string_view name, std::string_view what) {
  for (const auto& x : all) {
    if (element(x).name == name) return element(x);
  }
  fail(what, " `", name, "`", suggestion(name, names_of(all)));
}

}  // namespace compact
