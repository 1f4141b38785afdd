// SPDX-License-Identifier: Apache-2.0
// Counts items (lines, pictures) of an input that cannot be read and leaves them out, or makes the
// first one an error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {

// An error in one item (line, row, ...) of many; the others can still be read.
struct OddOne : InputError {
  using InputError::InputError;
};

class OddOnes {
 public:
  // `what`: "lines" of the file `path`.
  OddOnes(bool strict, std::string path, std::string what)
      : strict_(strict), path_(std::move(path)), what_(std::move(what)) {}

  // Throws InputError where `strict`.
  void add(const std::string& message) {
    if (strict_) fail(message);
    if (count_++ == 0) first_ = message;
  }
  // Calls f; false where it threw OddOne, which is added.
  template <class F>
  bool read(F f) {
    try {
      f();
      return true;
    } catch (const OddOne& odd) {
      add(odd.what());
      return false;
    }
  }
  // To be called at the end of the file; `good`: items that could be read. Returns a line about the
  // others, or none. Throws InputError where these are above 5 % of all, and above min(3, good).
  std::string finish(int64_t good) const {
    if (count_ == 0) return {};
    constexpr int64_t kHandful = 3;
    const int64_t most = std::max((good + count_) / 20, std::min(good, kHandful));
    COMPACT_CHECK(count_ <= most, first_,
                  good > 0 ? cat("; ", format_count(count_), " of ", format_count(count_ + good),
                                 " ", what_, " cannot be read: without --strict true 5 %, or ",
                                 kHandful, ", may be left out")
                           : std::string());
    return cat(
        path_, ": ", format_count(count_), " of ", format_count(count_ + good), " ", what_,
        " cannot be read and were left out (--strict true ends the run); the first: ", first_);
  }

 private:
  bool strict_;
  std::string path_, what_, first_;
  int64_t count_ = 0;
};

}  // namespace compact
