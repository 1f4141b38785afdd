// SPDX-License-Identifier: Apache-2.0
// bf16 as storage: the upper half of an f32.
#pragma once

#include <bit>
#include <cstdint>

#include "compact/base/philox.h"

namespace compact::kernels {

struct BFloat16 {
  uint16_t bits;
};

COMPACT_HOST_DEVICE inline uint32_t bits_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}
COMPACT_HOST_DEVICE inline float float_of(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(x);
#else
  return std::bit_cast<float>(x);
#endif
}

COMPACT_HOST_DEVICE inline float load(float x) { return x; }
COMPACT_HOST_DEVICE inline float load(BFloat16 x) { return float_of(uint32_t{x.bits} << 16); }

COMPACT_HOST_DEVICE inline bool is_nan(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

// Rounds to nearest even; a NaN stays a NaN.
COMPACT_HOST_DEVICE inline void store(float& out, float x) { out = x; }
COMPACT_HOST_DEVICE inline void store(BFloat16& out, float x) {
  const uint32_t b = bits_of(x);
  const uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  out.bits = static_cast<uint16_t>(is_nan(b) ? (b >> 16) | 0x40u : rounded);
}

// Rounds up with probability equal to the fraction dropped: unbiased. `random` has 16 bits.
// A finite value never becomes infinite, infinities and NaN stay.
COMPACT_HOST_DEVICE inline void store_stochastic(BFloat16& out, float x, uint32_t random) {
  const uint32_t b = bits_of(x);
  const bool special = (b & 0x7f800000u) == 0x7f800000u;
  uint32_t up = b + (random & 0xffffu);
  if ((up & 0x7f800000u) == 0x7f800000u) up = b;
  out.bits = static_cast<uint16_t>(special ? (b >> 16) | (is_nan(b) ? 0x40u : 0u) : up >> 16);
}
COMPACT_HOST_DEVICE inline void store_stochastic(float& out, float x, uint32_t) { out = x; }

}  // namespace compact::kernels
