// SPDX-License-Identifier: Apache-2.0
// Random values from 32 random bits, the same bits on every device: only +, -, *, /, sqrt in double
// and bit operations. To be compiled without contraction into fused multiply-adds.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "compact/base/philox.h"
#include "compact/kernels/kernels.h"

namespace compact::kernels {

// Natural logarithm of a normal positive double; relative error below 1e-11 away from x = 1.
COMPACT_HOST_DEVICE inline double exact_log(double x) {
#if defined(__CUDA_ARCH__)
  uint64_t bits = static_cast<uint64_t>(__double_as_longlong(x));
#else
  uint64_t bits = std::bit_cast<uint64_t>(x);
#endif
  // x = 2^e m with m in [0.75, 1.5)
  const int64_t e = (static_cast<int64_t>(bits) - 0x3fe8000000000000ll) >> 52;
  bits -= static_cast<uint64_t>(e) << 52;
#if defined(__CUDA_ARCH__)
  const double m = __longlong_as_double(static_cast<long long>(bits));
#else
  const double m = std::bit_cast<double>(bits);
#endif
  const double f = (m - 1) / (m + 1), g = f * f;  // log m = 2 atanh f, |f| <= 0.2
  double s = 1.0 / 15;
  s = s * g + 1.0 / 13;
  s = s * g + 1.0 / 11;
  s = s * g + 1.0 / 9;
  s = s * g + 1.0 / 7;
  s = s * g + 1.0 / 5;
  s = s * g + 1.0 / 3;
  s = s * g + 1.0;
  return static_cast<double>(e) * 0.69314718055994530942 + 2 * f * s;
}

// u in [0, 2^32) -> (u + 0.5) / 2^32 - 0.5.
COMPACT_HOST_DEVICE inline double centred_uniform(uint32_t u) {
  return (static_cast<double>(u) + 0.5) * (1.0 / 4294967296.0) - 0.5;
}

// The middle of the inverse normal distribution function, |q| <= kNormalMiddle, q = p - 1/2.
inline constexpr double kNormalMiddle = 0.425;
COMPACT_HOST_DEVICE inline double normal_middle(double q) {
  const double r = 0.180625 - q * q;
  const double a =
      ((5.9109374720e+01 * r + 1.5929113202e+02) * r + 5.0434271938e+01) * r + 3.3871327179e+00;
  const double b = ((6.7187563600e+01 * r + 7.8757757664e+01) * r + 1.7895169469e+01) * r + 1.0;
  return q * a / b;
}

// Its tails, for p and 1 - p from 1e-10 (what 32 bits reach) on.
COMPACT_HOST_DEVICE inline double normal_tail(double q) {
  const double r = sqrt(-exact_log(0.5 - (q < 0 ? -q : q))) - 1.6;
  const double c =
      ((1.7023821103e-01 * r + 1.3067284816e+00) * r + 2.7568153900e+00) * r + 1.4234372777e+00;
  const double d = (1.2021132975e-01 * r + 7.3700164250e-01) * r + 1.0;
  return q < 0 ? -(c / d) : c / d;
}

// The inverse normal distribution function at (u + 0.5) / 2^32, to about 1e-7: PPND7 of Wichura,
// "Algorithm AS 241: the percentage points of the normal distribution", 1988.
COMPACT_HOST_DEVICE inline float normal_of(uint32_t u) {
  const double q = centred_uniform(u);
  return static_cast<float>(q >= -kNormalMiddle && q <= kNormalMiddle ? normal_middle(q)
                                                                      : normal_tail(q));
}

// One value of a distribution: the top bit is the sign of kRademacher; kSparse is +sqrt(3) in the
// lowest and -sqrt(3) in the highest sixth of the range of u.
inline constexpr uint32_t kSixth = 0x2AAAAAABu;
inline constexpr float kSqrt3 = 1.7320508075688772f;
COMPACT_HOST_DEVICE inline float sample(Distribution distribution, uint32_t u) {
  switch (distribution) {
    case Distribution::kNormal:
      return normal_of(u);
    case Distribution::kRademacher:
      return u >> 31 ? -1.0f : 1.0f;
    case Distribution::kSparse:
      return u < kSixth ? kSqrt3 : u >= 0u - kSixth ? -kSqrt3 : 0.0f;
    case Distribution::kUniform:
      return kSqrt3 * static_cast<float>(2 * centred_uniform(u));
  }
  return 0;
}

}  // namespace compact::kernels
