// SPDX-License-Identifier: Apache-2.0
#include "compact/base/model_numbers.h"

#include <cmath>
#include <limits>

#include "compact/base/check.h"

namespace compact {

void check_sizes(const KeyedValues<int64_t>& sizes, std::string_view where) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMostLayers = 4096;
  for (const auto& [key, value] : sizes) {
    const std::string_view name = key;
    const bool layers = name == "num_hidden_layers" || name == "n_layer";
    const int64_t most = layers ? kMostLayers : kLargest;
    COMPACT_CHECK(value >= 1 && value <= most, where, ": ", key, " must be from 1 to ", most,
                  ", is ", value);
  }
}

void check_positive(const KeyedValues<double>& values, std::string_view where) {
  for (const auto& [key, value] : values) {
    COMPACT_CHECK(std::isfinite(value) && value > 0, where, ": ", key,
                  " must be positive and finite, is ", value);
  }
}

}  // namespace compact
