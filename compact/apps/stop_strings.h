// SPDX-License-Identifier: Apache-2.0
// Ends a text that comes in pieces before the first of some strings that is whole in it, wherever
// the pieces part.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace compact {

class StopStrings {
 public:
  // Throws InputError on an empty string.
  explicit StopStrings(std::vector<std::string> strings);

  // What of the text can be given out after this piece: all that is before a string, and of what
  // may yet become one nothing.
  std::string add(std::string_view piece);
  // What was held back.
  std::string finish();
  bool met() const { return met_; }  // the text has ended

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool met_ = false;
};

}  // namespace compact
