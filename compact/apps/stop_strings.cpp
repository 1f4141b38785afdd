// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/stop_strings.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "compact/base/check.h"

namespace compact {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& text : strings_) COMPACT_CHECK(!text.empty(), "--stop must not be empty");
}

std::string StopStrings::add(std::string_view piece) {
  held_ += piece;
  size_t begin = held_.npos, end = held_.npos, kept = 0;
  for (const std::string& text : strings_) {
    if (const size_t at = held_.find(text); at != held_.npos) {  // the first that is whole
      std::tie(end, begin) = std::min(std::tuple(end, begin), std::tuple(at + text.size(), at));
    }
    for (size_t size = std::min(text.size() - 1, held_.size()); size > kept; --size) {
      if (held_.ends_with(std::string_view(text).substr(0, size))) kept = size;
    }
  }
  met_ = end != held_.npos;
  std::string out = held_.substr(0, met_ ? begin : held_.size() - kept);
  held_.erase(0, met_ ? held_.npos : out.size());
  return out;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace compact
