// SPDX-License-Identifier: Apache-2.0
// Hadamard transforms of a row in memory: four stages within a register, four between registers,
// the rest between blocks of 256 values. Stages run in the order h = 1, 2, 4, ..., so that the
// result is that of the plain loop bit for bit.
#pragma once

#include <utility>

#include "compact/kernels/cpu/simd.h"

namespace compact::kernels::cpu {

template <int h, size_t count, class V>
COMPACT_INLINE V swap_in_register(V v) {
  return [&]<size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) {
#if defined(__clang__)
    return __builtin_shufflevector(v, v, static_cast<int>(i ^ h)...);
#else
    typedef int32_t Index __attribute__((vector_size(sizeof(V))));
    return __builtin_shuffle(v, Index{static_cast<int32_t>(i ^ h)...});
#endif
  }
  (std::make_index_sequence<count>());
}
// Lane i of the result is lane i ^ h of v.
template <int h>
COMPACT_INLINE Vec swap_lanes(Vec v) {
#if defined(COMPACT_PAIRS_OF_REGISTERS)
  if constexpr (h == 8)
    return Vec(v.high, v.low);
  else
    return Vec(swap_in_register<h, 8>(v.low), swap_in_register<h, 8>(v.high));
#else
  return swap_in_register<h, kLanes>(v);
#endif
}

// Lanes with bit h clear: a + b, the others a - b, of each pair (a, b) at distance h.
template <int h>
COMPACT_INLINE Vec pair_lanes(Vec v) {
  static constexpr auto kSigns = [] {
    std::array<float, kLanes> each{};
    for (size_t i = 0; i < kLanes; ++i) each[i] = i & h ? -1.0f : 1.0f;
    return each;
  }();
  const auto signs = load_raw<Vec>(kSigns.data());
#if defined(__AVX512F__)
  // One product by +-1 is exact, so fusing it changes nothing.
  return (Vec)_mm512_fmadd_ps((__m512)v, (__m512)signs, (__m512)swap_lanes<h>(v));
#else
  return v * signs + swap_lanes<h>(v);
#endif
}
COMPACT_INLINE Vec within_register(Vec v) {
  return pair_lanes<8>(pair_lanes<4>(pair_lanes<2>(pair_lanes<1>(v))));
}

COMPACT_INLINE void pair(Vec& a, Vec& b) {
  const Vec sum = a + b;
  b = a - b;
  a = sum;
}
// All stages between `count` registers.
template <int count, int h = 1>
COMPACT_INLINE void between_registers(Vec (&v)[count]) {
  if constexpr (h < count) {
    [&]<size_t... j>(std::index_sequence<j...>) __attribute__((always_inline)) {
      (pair(v[j / h * 2 * h + j % h], v[j / h * 2 * h + j % h + h]), ...);
    }
    (std::make_index_sequence<static_cast<size_t>(count / 2)>());
    between_registers<count, 2 * h>(v);
  }
}

template <int count, class F>
COMPACT_INLINE void unrolled(F&& f) {
  [&]<size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, static_cast<int>(i)>{}), ...);
  }
  (std::make_index_sequence<static_cast<size_t>(count)>());
}

// The first log2(16 * count) stages of a block of 16 * count values; out = H (factor * x).
template <int count, class T>
COMPACT_INLINE void first_stages(const T* x, const float* factor, float* out) {
  Vec v[count];
  unrolled<count>([&](auto i) __attribute__((always_inline)) {
    v[i] = within_register(load(x + i * kLanes) * load(factor + i * kLanes));
  });
  between_registers<count>(v);
  unrolled<count>([&](auto i) __attribute__((always_inline)) { store(out + i * kLanes, v[i]); });
}

// log2(count) stages between values `stride` apart, in place on k values.
template <int count>
inline void later_stages(float* x, int64_t k, int64_t stride) {
  for (int64_t block = 0; block < k; block += count * stride) {
    for (float* p = x + block; p < x + block + stride; p += kLanes) {
      Vec v[count];
      unrolled<count>([&](auto i) __attribute__((always_inline)) { v[i] = load(p + i * stride); });
      between_registers<count>(v);
      unrolled<count>([&](auto i) __attribute__((always_inline)) { store(p + i * stride, v[i]); });
    }
  }
}

// out = H (factor * x), unnormalised, of k values, k a power of two. out may be x.
template <class T>
inline void hadamard(const T* x, const float* factor, float* out, int64_t k) {
  switch (k) {
    case 16:
      return first_stages<1>(x, factor, out);
    case 32:
      return first_stages<2>(x, factor, out);
    case 64:
      return first_stages<4>(x, factor, out);
    case 128:
      return first_stages<8>(x, factor, out);
    default:
      break;
  }
  if (k < 16) {
    for (int64_t i = 0; i < k; ++i)
      out[i] = load(x[i]) * factor[i];  // NOLINT: the analyzer misses who fills x
    for (int64_t h = 1; h < k; h *= 2) {
      for (int64_t i = 0; i < k; ++i) {
        if (i & h) continue;
        const float a = out[i], b = out[i + h];
        out[i] = a + b;
        out[i + h] = a - b;
      }
    }
    return;
  }
  for (int64_t i = 0; i < k; i += 256) first_stages<16>(x + i, factor + i, out + i);
  int64_t stride = 256;
  for (; k / stride > 16; stride *= 8) later_stages<8>(out, k, stride);
  switch (k / stride) {
    case 2:
      return later_stages<2>(out, k, stride);
    case 4:
      return later_stages<4>(out, k, stride);
    case 8:
      return later_stages<8>(out, k, stride);
    case 16:
      return later_stages<16>(out, k, stride);
    default:
      return;
  }
}

}  // namespace compact::kernels::cpu
