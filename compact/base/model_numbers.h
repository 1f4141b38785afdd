// SPDX-License-Identifier: Apache-2.0
// Checks that the configurations of all models share. Throws InputError "`where`: KEY must ...".
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace compact {

void check_positive(const std::vector<std::pair<const char*, double>>& values,
                    std::string_view where);

}  // namespace compact
