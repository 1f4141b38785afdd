// SPDX-License-Identifier: Apache-2.0
// The highest number of bytes that operator new holds at once while an object of this lives, above
// what it held before. One at a time.
#pragma once

#include <cstdint>

namespace compact::test {

class PeakOfNew {
 public:
  PeakOfNew();
  ~PeakOfNew();
  int64_t peak() const;
};

}  // namespace compact::test
