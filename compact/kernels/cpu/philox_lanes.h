// SPDX-License-Identifier: Apache-2.0
// Philox for many counters at once: the words of base/philox.h in the order of their counters.
#pragma once

#include "compact/base/philox.h"
#include "compact/kernels/cpu/simd.h"

namespace compact::kernels::cpu {

inline constexpr int kPhiloxCounters = 32;  // of one call of philox_words
inline constexpr int kPhiloxWords = 4 * kPhiloxCounters;

#if defined(__AVX512F__)

// Counters are 64-bit lanes of which the low halves count: the multiplication ignores the others.
// out[4 c + w] = word w of philox(key, counter + c).
COMPACT_INLINE void philox_words(uint64_t key, uint64_t counter, uint32_t* out) {
  constexpr int kSets = kPhiloxCounters / 8;
  __m512i c0[kSets], c1[kSets], c2[kSets], c3[kSets];
  // Lanes 2l and 2l+1 hold counters l and 4+l, so that unpacking puts the words in order.
  const __m512i lane = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
#pragma GCC unroll 4
  for (int s = 0; s < kSets; ++s) {
    const uint64_t first = counter + static_cast<uint64_t>(8 * s);
    c0[s] = _mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(first)), lane);
    c1[s] = _mm512_srli_epi64(c0[s], 32);
    c2[s] = c3[s] = _mm512_setzero_si512();
  }
  const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const __m512i key0 = _mm512_set1_epi64(k0), key1 = _mm512_set1_epi64(k1);
#pragma GCC unroll 4
    for (int s = 0; s < kSets; ++s) {
      const __m512i p0 = _mm512_mul_epu32(c0[s], m0), p1 = _mm512_mul_epu32(c2[s], m1);
      c0[s] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c1[s], key0, 0x96);
      c2[s] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c3[s], key1, 0x96);
      c1[s] = p1;
      c3[s] = p0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
#pragma GCC unroll 4
  for (int s = 0; s < kSets; ++s) {
    const __mmask16 odd = 0xAAAA;
    const __m512i low = _mm512_mask_mov_epi32(c0[s], odd, _mm512_slli_epi64(c1[s], 32));
    const __m512i high = _mm512_mask_mov_epi32(c2[s], odd, _mm512_slli_epi64(c3[s], 32));
    _mm512_storeu_si512(out + 32 * s, _mm512_unpacklo_epi64(low, high));
    _mm512_storeu_si512(out + 32 * s + 16, _mm512_unpackhi_epi64(low, high));
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
