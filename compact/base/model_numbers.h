// SPDX-License-Identifier: Apache-2.0
// Checks that the configurations of all models share. Each throws InputError "`where`: KEY must
// ...".
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace compact {

template <class T>
using KeyedValues = std::vector<std::pair<const char*, T>>;

void check_positive(const KeyedValues<double>& values, std::string_view where);

}  // namespace compact
