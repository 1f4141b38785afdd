// SPDX-License-Identifier: Apache-2.0
// Sixteen bytes beside sixteen f32 lanes, and sixteen bits of randomness for each.
#pragma once

#include "compact/kernels/cpu/philox_lanes.h"
#include "compact/kernels/cpu/simd.h"

namespace compact::kernels::cpu {

typedef uint8_t BVec __attribute__((vector_size(16)));

COMPACT_INLINE UVec widen_bytes(BVec b) {
#if defined(__AVX512F__)
  return (UVec)_mm512_cvtepu8_epi32((__m128i)b);
#elif defined(COMPACT_PAIRS_OF_REGISTERS)
  return UVec((UVec::Half)_mm256_cvtepu8_epi32((__m128i)b),
              (UVec::Half)_mm256_cvtepu8_epi32(_mm_srli_si128((__m128i)b, 8)));
#else
  return __builtin_convertvector(b, UVec);
#endif
}
COMPACT_INLINE BVec narrow_bytes(UVec u) {
#if defined(__AVX512F__)
  return (BVec)_mm512_cvtepi32_epi8((__m512i)u);
#elif defined(COMPACT_PAIRS_OF_REGISTERS)
  const __m256i h = (__m256i)narrow(u & 0xffu);
  return (BVec)_mm_packus_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
#else
  return __builtin_convertvector(u, BVec);
#endif
}
COMPACT_INLINE size_t lanes_of(Full) { return kLanes; }
COMPACT_INLINE size_t lanes_of(int n) { return static_cast<size_t>(n); }
template <class Count>
COMPACT_INLINE UVec load_bytes(const uint8_t* p, Count count) {  // lanes beyond count are 0
  BVec b{};
  std::memcpy(&b, p, lanes_of(count));
  return widen_bytes(b);
}
template <class Count>
COMPACT_INLINE void store_bytes(uint8_t* p, UVec u, Count count) {
  const BVec b = narrow_bytes(u);
  std::memcpy(p, &b, lanes_of(count));
}

// Halves of the words of one call of philox_words, low half first.
inline constexpr int kPhiloxHalves = 2 * kPhiloxWords;
inline void philox_halves(uint64_t key, uint64_t counter, uint16_t* out) {
  uint32_t words[kPhiloxWords];
  philox_words(key, counter, words);
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(out, words, sizeof words);
  } else {
    for (int j = 0; j < kPhiloxWords; ++j) {
      out[2 * j] = static_cast<uint16_t>(words[j]);
      out[2 * j + 1] = static_cast<uint16_t>(words[j] >> 16);
    }
  }
}

// Lanes of u16 halves.
COMPACT_INLINE UVec load_halves(const uint16_t* p) { return widen(load_raw<HVec>(p)); }

}  // namespace compact::kernels::cpu
