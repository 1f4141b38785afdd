// SPDX-License-Identifier: Apache-2.0
#include "compact/base/model_numbers.h"

#include <cmath>
#include <limits>

#include "compact/base/check.h"

namespace compact {

void check_positive(const KeyedValues<double>& values, std::string_view where) {
  for (const auto& [key, value] : values) {
    COMPACT_CHECK(std::isfinite(value) && value > 0, where, ": ", key,
                  " must be positive and finite, is ", value);
  }
}

}  // namespace compact
