// SPDX-License-Identifier: Apache-2.0
// 8-bit floats that share a power of two: 3 bits of mantissa, and 5 of exponent, or 4 and a sign.
// A block is scaled so that its largest finite size lies in [1/4, 1/2): one octave is left to round
// up to. The largest code is an infinity, so that what overflows in one place (the second moment of
// a gradient of 1e20) leaves its neighbours as they are.
#pragma once

#include "compact/kernels/bfloat16.h"

namespace compact::kernels {

struct Float8Format {
  int exponent_bits;
  bool is_signed;

  // f32's exponent of the value of code 8 (the least normal one), less 1.
  COMPACT_HOST_DEVICE constexpr uint32_t shift() const { return 127u - (1u << exponent_bits); }
  COMPACT_HOST_DEVICE constexpr uint32_t most() const { return (8u << exponent_bits) - 1; }
  // Codes of the least normal number and below count in steps of 1 / steps().
  COMPACT_HOST_DEVICE float steps() const {
    return float_of((127u + (1u << exponent_bits) + 2u) << 23);
  }
};
COMPACT_HOST_DEVICE constexpr Float8Format float8_format(bool is_signed) {
  return {is_signed ? 4 : 5, is_signed};
}

// The bits by which a number's size counts in its block: an infinity's as those of the least
// number, so that the block's power is never 0 beside it.
COMPACT_HOST_DEVICE inline uint32_t float8_size(float x) {
  const uint32_t size = bits_of(x) & 0x7fffffffu;
  return size == 0x7f800000u ? 1u : size;
}

// The power of two that a block is divided by, from its largest float8_size(): 0 for 0, NaN for
// NaN. From 2^125 up the power stays, and finite numbers that do not fit become the largest one.
COMPACT_HOST_DEVICE inline float float8_scale(uint32_t largest) {
  if (largest == 0) return 0;
  if (largest > 0x7f800000u) return float_of(0x7fc00000u);
  const uint32_t exponent = largest >> 23;
  return float_of((exponent < 1 ? 3u : exponent > 251 ? 253u : exponent + 2) << 23);
}
// 1 / scale, 0 for scale 0: exact. NaN stays.
COMPACT_HOST_DEVICE inline float float8_inverse(float scale) {
  const uint32_t bits = bits_of(scale);
  return bits == 0 ? 0.0f : bits > 0x7f800000u ? scale : float_of((254u << 23) - bits);
}

// Rounded up with probability equal to what is dropped, to 16 bits (`random` has 16): unbiased but
// for less than 2^-16 of a step. Unsigned values above 0 never become 0: a second moment of 0 would
// make steps infinite.
COMPACT_HOST_DEVICE inline uint8_t float8_code(Float8Format f, float x, float inverse,
                                               uint32_t random) {
  const uint32_t bits = bits_of(x), sign = bits >> 31;
  const float y = float_of(bits & 0x7fffffffu) * inverse;
  uint32_t code = y <= 4 ? f.most() - 1 : f.most();  // the power is too small; infinite, or NaN
  if (bits_of(y) < (f.shift() + 1) << 23) {
    code = static_cast<uint32_t>(y * f.steps() + static_cast<float>(random) * 0x1p-16f);
  } else if (y < 0.875f) {
    code = ((bits_of(y) + (random << 4)) >> 20) - (f.shift() << 3);
  }
  if (!f.is_signed && code == 0 && y > 0) code = 1;
  return static_cast<uint8_t>(f.is_signed ? code | sign << 7 : code);
}

COMPACT_HOST_DEVICE inline float float8_value(Float8Format f, uint8_t code, float scale) {
  const uint32_t size = f.is_signed ? code & 0x7fu : code;
  const float y = size < 8           ? static_cast<float>(size) / f.steps()
                  : size == f.most() ? float_of(0x7f800000u)
                                     : float_of((size << 20) + (f.shift() << 23));
  return (f.is_signed && code >= 128 ? -y : y) * scale;
}

}  // namespace compact::kernels
