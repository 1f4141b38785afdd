// SPDX-License-Identifier: Apache-2.0
// Loads and stores of sixteen lanes, sums in a fixed order, and the functions that kernels need.
#pragma once

#include <limits>
#include <type_traits>

#include "compact/kernels/bfloat16.h"
#include "compact/kernels/cpu/lanes.h"
#include "compact/kernels/dispatch.h"
#include "compact/kernels/kernels.h"

namespace compact::kernels::cpu {

typedef uint16_t HVec __attribute__((vector_size(32)));

using kernels::load;
using kernels::store;
using kernels::store_stochastic;

// How many lanes of a Vec are in memory: all, or the first `n` of a row's end.
struct Full {};

COMPACT_INLINE UVec widen(HVec h) {
#if defined(__AVX512F__)  // GCC 12 makes four instructions of this conversion, three of the other
  return (UVec)_mm512_cvtepu16_epi32((__m256i)h);
#elif defined(COMPACT_PAIRS_OF_REGISTERS)
  return UVec((UVec::Half)_mm256_cvtepu16_epi32(_mm256_castsi256_si128((__m256i)h)),
              (UVec::Half)_mm256_cvtepu16_epi32(_mm256_extracti128_si256((__m256i)h, 1)));
#else
  return __builtin_convertvector(h, UVec);
#endif
}
COMPACT_INLINE HVec narrow(UVec u) {
#if defined(__AVX512F__)
  return (HVec)_mm512_cvtepi32_epi16((__m512i)u);
#elif defined(COMPACT_PAIRS_OF_REGISTERS)
  u &= 0xffffu;  // what follows packs each half of a register by itself, and saturates
  return (HVec)_mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)u.low, (__m256i)u.high), 0xd8);
#else
  return __builtin_convertvector(u, HVec);
#endif
}

COMPACT_INLINE Vec load(const float* p, Full = {}) { return load_raw<Vec>(p); }
COMPACT_INLINE Vec load(const BFloat16* p, Full = {}) {
  return (Vec)(widen(load_raw<HVec>(p)) << 16);
}
template <class T>
COMPACT_INLINE Vec load(const T* p, int n) {  // lanes beyond n are 0
  T row[kLanes] = {};
  std::memcpy(row, p, static_cast<size_t>(n) * sizeof(T));
  return load(row);
}

// bf16 bits of x to nearest even, in the low halves.
COMPACT_INLINE UVec nearest_bits(Vec x) {
  const UVec b = (UVec)x;
  const UVec rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  return select((b & 0x7fffffffu) > 0x7f800000u, (b >> 16) | 0x40u, rounded);
}
// The same rounded stochastically, as store_stochastic of bfloat16.h; random is below 2^16.
COMPACT_INLINE UVec stochastic_bits(Vec x, UVec random) {
  const UVec b = (UVec)x, size = b & 0x7fffffffu;
  const UVec up = select(size + random < 0x7f800000u, b + random, b) >> 16;  // stays finite
  return select(size > 0x7f800000u, up | 0x40u, up);
}

COMPACT_INLINE void store_bits(BFloat16* p, UVec bits, Full = {}) {
  const HVec h = narrow(bits);
  std::memcpy(p, &h, sizeof h);
}
COMPACT_INLINE void store_bits(BFloat16* p, UVec bits, int n) {
  const HVec h = narrow(bits);
  std::memcpy(p, &h, static_cast<size_t>(n) * sizeof(BFloat16));
}
COMPACT_INLINE void store(float* p, Vec x, Full = {}) { store_raw(p, x); }
COMPACT_INLINE void store(float* p, Vec x, int n) {
  std::memcpy(p, &x, static_cast<size_t>(n) * sizeof(float));
}
template <class Count = Full>
COMPACT_INLINE void store(BFloat16* p, Vec x, Count count = {}) {
  store_bits(p, nearest_bits(x), count);
}
template <class Count>
COMPACT_INLINE void store_stochastic(float* p, Vec x, UVec, Count count) {
  store(p, x, count);
}
template <class Count>
COMPACT_INLINE void store_stochastic(BFloat16* p, Vec x, UVec random, Count count) {
  store_bits(p, stochastic_bits(x, random), count);
}

// x as it would be read back after a store as T.
template <class T>
COMPACT_INLINE Vec rounded(Vec x) {
  if constexpr (std::is_same_v<T, BFloat16>) return (Vec)(nearest_bits(x) << 16);
  return x;
}

// Calls body(i, count) for i = 0, 16, ... below n; count is Full, or what is left at the end.
template <class Body>
COMPACT_INLINE void for_lanes(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Full{});
  if (i < n) body(i, static_cast<int>(n - i));
}

COMPACT_INLINE Vec sqrt(Vec x) {
#if defined(__AVX512F__)
  return (Vec)_mm512_sqrt_ps((__m512)x);
#elif defined(COMPACT_PAIRS_OF_REGISTERS)
  return Vec((Vec::Half)_mm256_sqrt_ps((__m256)x.low), (Vec::Half)_mm256_sqrt_ps((__m256)x.high));
#else
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// Sum over i < n of term(i, count), a Vec whose lanes beyond count are 0. Four running sums.
template <class Term>
COMPACT_INLINE float sum_lanes(int64_t n, Term&& term) {
  Vec s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 += term(i, Full{});
    s1 += term(i + kLanes, Full{});
    s2 += term(i + 2 * kLanes, Full{});
    s3 += term(i + 3 * kLanes, Full{});
  }
  for (; i + kLanes <= n; i += kLanes) s0 += term(i, Full{});
  if (i < n) s1 += term(i, static_cast<int>(n - i));
  return across((s0 + s1) + (s2 + s3), [](float a, float b) { return a + b; });
}

// a * b + c: fused where the machine can. Only for approximations, whose last bit is free.
COMPACT_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(COMPACT_PAIRS_OF_REGISTERS) && defined(__FMA__)
  return Vec((Vec::Half)_mm256_fmadd_ps((__m256)a.low, (__m256)b.low, (__m256)c.low),
             (Vec::Half)_mm256_fmadd_ps((__m256)a.high, (__m256)b.high, (__m256)c.high));
#else
  return a * b + c;
#endif
}
COMPACT_INLINE Vec multiply_add(Vec a, float b, float c) {
  return multiply_add(a, splat(b), splat(c));
}
COMPACT_INLINE Vec multiply_add(Vec a, Vec b, float c) { return multiply_add(a, b, splat(c)); }

// x within [low, high]; NaN stays.
COMPACT_INLINE Vec clamp(Vec x, float low, float high) {
#if defined(__AVX512F__)  // where an operand is NaN, the second is the result
  return (Vec)_mm512_max_ps(_mm512_set1_ps(low), _mm512_min_ps(_mm512_set1_ps(high), (__m512)x));
#else
  x = select(x > high, splat(high), x);
  return select(x < low, splat(low), x);
#endif
}

// p 2^k for integers |k| <= 150, through the ends of the range.
COMPACT_INLINE Vec scale_by_power(Vec p, Vec k) {
#if defined(__AVX512F__)
  return (Vec)_mm512_scalef_ps((__m512)p, (__m512)k);
#else
  const IVec n = convert<IVec>(select(k == k, k, Vec{})), half = n >> 1;
  return p * (Vec)((half + 127) << 23) * (Vec)((n - half + 127) << 23);
#endif
}

// exp(x), within 2 ulp: 0 below -104, infinity above 88.73, NaN stays. Cephes' expf.
COMPACT_INLINE Vec exp(Vec x) {
  x = clamp(x, -104.0f, 89.0f);
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec k = multiply_add(x, 1.44269504088896341f, magic) - magic;
  const Vec r = multiply_add(k, splat(2.12194440e-4f), multiply_add(k, splat(-0.693359375f), x));
  Vec p = multiply_add(r, 1.9875691500e-4f, 1.3981999507e-3f);
  p = multiply_add(p, r, 8.3334519073e-3f);
  p = multiply_add(p, r, 4.1665795894e-2f);
  p = multiply_add(p, r, 1.6666665459e-1f);
  p = multiply_add(p, r, 5.0000001201e-1f);
  p = multiply_add(p, r * r, r) + 1.0f;
  return scale_by_power(p, k);
}

COMPACT_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

// Rows that make a range worth a thread.
inline int64_t row_grain(int64_t row) { return row >= 16384 ? 1 : 16384 / (row > 0 ? row : 1); }

}  // namespace compact::kernels::cpu
