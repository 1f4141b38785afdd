// SPDX-License-Identifier: Apache-2.0
// Checks at public borders: a violated rule becomes std::invalid_argument with the rule and the
// value.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace compact {

// Joins its arguments as text.
template <class... Args>
std::string cat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

// A rule about input from outside that does not hold. The program maps it to exit code 2.
struct InputError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

template <class... Args>
[[noreturn]] void fail(const Args&... args) {
  throw InputError(cat(args...));
}

}  // namespace compact

// COMPACT_CHECK(rank > 0, "[project] rank must be positive, is ", rank)
#define COMPACT_CHECK(condition, ...)               \
  do {                                              \
    if (!(condition)) ::compact::fail(__VA_ARGS__); \
  } while (false)
