// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/gpu_speed.h"

#include <algorithm>
#include <cctype>

namespace compact {
namespace {

constexpr GpuSpeed kSpeeds[] = {
    {"H100 PCIe", 756, 51, 2.0},
    {"H100 NVL", 835, 60, 3.9},
    {"H100", 989, 67, 3.35},
    {"H200", 989, 67, 4.8},
    {"GH200", 989, 67, 4.0},
    {"B200", 2250, 75, 8.0},
    {"B100", 1750, 60, 8.0},
    {"A100 80GB PCIe", 312, 19.5, 1.94},
    {"A100-SXM4-80GB", 312, 19.5, 2.04},
    {"A100", 312, 19.5, 1.56},
    {"A800", 312, 19.5, 2.04},
    {"H800", 989, 67, 3.35},
    {"L40S", 362, 91.6, 0.864},
    {"L40", 181, 90.5, 0.864},
    {"L4", 121, 30.3, 0.3},
    {"A40", 150, 37.4, 0.696},
    {"A30", 165, 10.3, 0.933},
    {"A10G", 70, 31.5, 0.6},
    {"A10", 125, 31.2, 0.6},
    {"RTX 6000 Ada", 364, 91.1, 0.96},
    {"RTX A6000", 155, 38.7, 0.768},
    {"RTX A5000", 111, 27.8, 0.768},
    {"RTX 5090", 210, 105, 1.79},
    {"RTX 5080", 113, 56.3, 0.96},
    {"RTX 4090", 165, 82.6, 1.01},
    {"RTX 4080", 97.5, 48.7, 0.717},
    {"RTX 4070", 58.3, 29.1, 0.504},
    {"RTX 3090", 71, 35.6, 0.936},
    {"RTX 3080", 59.5, 29.8, 0.76},
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Whether `words` stand in `text`, not as part of a longer word: "A10" is not in "A100".
bool holds(std::string_view text, std::string_view words) {
  for (size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1)) {
    const size_t end = at + words.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::span<const GpuSpeed> gpu_speeds() { return kSpeeds; }

const GpuSpeed& gpu_speed(std::string_view name) {
  const auto named = [](std::string_view text) {
    return std::ranges::find_if(kSpeeds, [&](const GpuSpeed& s) { return holds(text, s.name); });
  };
  const auto found = named(name);
  return found != std::end(kSpeeds) ? *found : *named("H100");
}

}  // namespace compact
