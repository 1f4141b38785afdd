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

void check_dropouts(const KeyedValues<double>& values, std::string_view where) {
  for (const auto& [key, value] : values) {
    COMPACT_CHECK(value >= 0 && value < 1, where, ": ", key, " must be at least 0 and below 1, is ",
                  value);
  }
}

void check_token(const char* key, int64_t id, int64_t vocabulary, std::string_view where) {
  COMPACT_CHECK(id >= 0 && id < vocabulary, where, ": ", key,
                " must be from 0 to vocab_size - 1 = ", vocabulary - 1, ", is ", id);
}

}  // namespace compact
