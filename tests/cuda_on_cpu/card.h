// SPDX-License-Identifier: Apache-2.0
// The card that kernels run on. COMPACT_EMULATED_CARD names the one that is emulated (h100 where it
// is not set).
#pragma once

#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

namespace emulated {

struct Card {
  std::string_view name;
  size_t shared_bytes;  // that a block may ask for; 48 KiB without asking
};
inline constexpr Card kCards[] = {
    {"h100", 227 * 1024}, {"a100", 163 * 1024}, {"geforce", 99 * 1024}};
inline constexpr size_t kPlainSharedBytes = 48 * 1024;
inline constexpr unsigned kWarp = 32, kMostThreads = 1024;

inline const Card& card() {
  static const Card* const the = []() -> const Card* {
    const char* wanted = std::getenv("COMPACT_EMULATED_CARD");
    for (const Card& each : kCards) {
      if (!wanted || each.name == wanted) return &each;
    }
    throw std::runtime_error(
        std::string("COMPACT_EMULATED_CARD must be h100, a100 or geforce, is ") + wanted);
  }();
  return *the;
}

}  // namespace emulated
