// SPDX-License-Identifier: Apache-2.0
// Philox for many counters at once: the words of base/philox.h in the order of their counters.
#pragma once

#include "compact/base/philox.h"
#include "compact/kernels/cpu/simd.h"

namespace compact::kernels::cpu {

inline constexpr int kPhiloxCounters = 32;  // of one call of philox_words
inline constexpr int kPhiloxWords = 4 * kPhiloxCounters;

#if defined(__AVX512F__) || defined(__AVX2__)

// A register of 64-bit lanes. low_and_high: a's low halves, with b's low halves as the high ones.
#if defined(__AVX512F__)
struct PhiloxRegister {
  typedef __m512i T;
  COMPACT_INLINE static T all(uint64_t x) { return _mm512_set1_epi64(static_cast<int64_t>(x)); }
  COMPACT_INLINE static T add(T a, T b) { return _mm512_add_epi64(a, b); }
  COMPACT_INLINE static T multiply(T a, T b) { return _mm512_mul_epu32(a, b); }  // low halves
  COMPACT_INLINE static T high(T a) { return _mm512_srli_epi64(a, 32); }
  COMPACT_INLINE static T exclusive_or(T a, T b, T c) {
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
  }
  COMPACT_INLINE static T low_and_high(T a, T b) {
    return _mm512_mask_mov_epi32(a, 0xAAAA, _mm512_slli_epi64(b, 32));
  }
  COMPACT_INLINE static T even_lanes(T a, T b) { return _mm512_unpacklo_epi64(a, b); }
  COMPACT_INLINE static T odd_lanes(T a, T b) { return _mm512_unpackhi_epi64(a, b); }
  COMPACT_INLINE static T lanes() { return _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0); }
};
#else
struct PhiloxRegister {
  typedef __m256i T;
  COMPACT_INLINE static T all(uint64_t x) { return _mm256_set1_epi64x(static_cast<int64_t>(x)); }
  COMPACT_INLINE static T add(T a, T b) { return _mm256_add_epi64(a, b); }
  COMPACT_INLINE static T multiply(T a, T b) { return _mm256_mul_epu32(a, b); }
  COMPACT_INLINE static T high(T a) { return _mm256_srli_epi64(a, 32); }
  COMPACT_INLINE static T exclusive_or(T a, T b, T c) {
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
  }
  COMPACT_INLINE static T low_and_high(T a, T b) {
    return _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xAA);
  }
  COMPACT_INLINE static T even_lanes(T a, T b) { return _mm256_unpacklo_epi64(a, b); }
  COMPACT_INLINE static T odd_lanes(T a, T b) { return _mm256_unpackhi_epi64(a, b); }
  COMPACT_INLINE static T lanes() { return _mm256_set_epi64x(3, 1, 2, 0); }
};
#endif

// Values are in the low halves of 64-bit lanes: the multiplication ignores the high halves. out[4 c
// + w] = word w of philox(key, counter + c).
COMPACT_INLINE void philox_words(uint64_t key, uint64_t counter, uint32_t* out) {
  typedef PhiloxRegister R;
  constexpr int kWidth = sizeof(R::T) / sizeof(uint64_t),
                kSets = 4;  // that fit into the registers
  static_assert(kPhiloxCounters % (kWidth * kSets) == 0);
  const R::T m0 = R::all(0xD2511F53), m1 = R::all(0xCD9E8D57);
  for (int done = 0; done < kPhiloxCounters; done += kWidth * kSets) {
    R::T c0[kSets], c1[kSets], c2[kSets], c3[kSets];
    // Lanes 2l and 2l + 1 hold counters l and kWidth / 2 + l, so that unpacking puts words in
    // order.
#pragma GCC unroll 4
    for (int s = 0; s < kSets; ++s) {
      const uint64_t first = counter + static_cast<uint64_t>(done + kWidth * s);
      c0[s] = R::add(R::all(first), R::lanes());
      c1[s] = R::high(c0[s]);
      c2[s] = c3[s] = R::all(0);
    }
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const R::T key0 = R::all(k0), key1 = R::all(k1);
#pragma GCC unroll 4
      for (int s = 0; s < kSets; ++s) {
        const R::T p0 = R::multiply(c0[s], m0), p1 = R::multiply(c2[s], m1);
        c0[s] = R::exclusive_or(R::high(p1), c1[s], key0);
        c2[s] = R::exclusive_or(R::high(p0), c3[s], key1);
        c1[s] = p1;
        c3[s] = p0;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
#pragma GCC unroll 4
    for (int s = 0; s < kSets; ++s) {
      const R::T low = R::low_and_high(c0[s], c1[s]), high = R::low_and_high(c2[s], c3[s]);
      const R::T even = R::even_lanes(low, high), odd = R::odd_lanes(low, high);
      uint32_t* at = out + 4 * (done + kWidth * s);
      std::memcpy(at, &even, sizeof even);
      std::memcpy(at + 2 * kWidth, &odd, sizeof odd);
    }
  }
}

#else

inline void philox_words(uint64_t key, uint64_t counter, uint32_t* out) {
  for (int c = 0; c < kPhiloxCounters; ++c) {
    const Random4 r = philox(key, counter + static_cast<uint64_t>(c));
    std::memcpy(out + 4 * c, r.v, sizeof r.v);
  }
}

#endif

}  // namespace compact::kernels::cpu
