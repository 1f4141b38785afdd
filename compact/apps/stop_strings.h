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

  // The text that can be shown after this piece: all before a stop string, but nothing that may yet
  // become one.
  std::string add(std::string_view piece);
  // The text that was held back.
  std::string finish();
  bool met() const { return met_; }  // the text has ended

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool met_ = false;
};

}  // namespace compact
