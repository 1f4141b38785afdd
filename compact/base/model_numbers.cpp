// SPDX-License-Identifier: Apache-2.0
#include "compact/base/model_numbers.h"

#include <cmath>

#include "compact/base/check.h"

namespace compact {

void check_positive(const std::vector<std::pair<const char*, double>>& values,
                    std::string_view where) {
  for (const auto& [key, value] : values) {
    COMPACT_CHECK(std::isfinite(value) && value > 0, where, ": ", key,
                  " must be positive and finite, is ", value);
  }
}

}  // namespace compact
