// SPDX-License-Identifier: Apache-2.0
// The length of the rows of a batch whose samples are not equally long.
#pragma once

#include <algorithm>
#include <cstdint>

namespace compact {

struct Padding {
  int64_t pad = 0;         // the id that fills rows
  int64_t multiple = 8;    // lengths are rounded up to multiples of it
  int64_t max_length = 0;  // but never above this; no sample is longer

  int64_t length_for(int64_t longest) const {
    return std::min(max_length, (longest + multiple - 1) / multiple * multiple);
  }
};

}  // namespace compact
