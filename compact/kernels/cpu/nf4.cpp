// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/nf4.h"

#include <algorithm>

#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/lanes8.h"

namespace compact::kernels::cpu {
namespace {

// The sixteen codes that begin at p, of which `count` exist.
COMPACT_INLINE UVec codes_at(const uint8_t* p, int64_t count) {
  BVec bytes{};
  std::memcpy(&bytes, p, static_cast<size_t>(std::min<int64_t>(kLanes, count) + 1) / 2);
  const BVec first = bytes >> 4, second = bytes & 15;
  return widen_bytes(__builtin_shufflevector(first, second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                             21, 6, 22, 7, 23));
}

// Entry `at` of a table of sixteen, lane by lane; at < 16.
COMPACT_INLINE UVec entries(UVec table, UVec at) {
#if defined(__AVX512F__)
  return (UVec)_mm512_permutexvar_epi32((__m512i)at, (__m512i)table);
#elif defined(COMPACT_PAIRS_OF_REGISTERS)
  const auto half = [&](UVec::Half i) {
    const __m256i low = _mm256_permutevar8x32_epi32((__m256i)table.low, (__m256i)i),
                  high = _mm256_permutevar8x32_epi32((__m256i)table.high, (__m256i)i);
    return (UVec::Half)_mm256_blendv_epi8(low, high, (__m256i)(i > 7u));
  };
  return UVec(half(at.low), half(at.high));
#else
  UVec found{};
  for (int l = 0; l < kLanes; ++l) found[l] = table[at[l]];
  return found;
#endif
}

template <class Count>
COMPACT_INLINE void store_entries(float* to, UVec bits, Count count) {
  store(to, (Vec)bits, count);
}
template <class Count>
COMPACT_INLINE void store_entries(BFloat16* to, UVec bits, Count count) {
  store_bits(to, bits, count);
}

// A block of `count` elements: its sixteen values are made once.
template <class T>
void decode_block(const uint8_t* codes, Vec levels, float scale, T* to, int64_t count) {
  const Vec values = levels * scale;
  UVec bits = (UVec)values;
  if constexpr (std::is_same_v<T, BFloat16>) bits = nearest_bits(values);
  for_lanes(count, [&](int64_t i, auto n) {
    store_entries(to + i, entries(bits, codes_at(codes + i / 2, count - i)), n);
  });
}

template <class T>
void decode_blocks(const Nf4Decode& a, int64_t begin, int64_t end) {
  const Vec levels = load(a.levels);
  const float offset = a.scale_codes ? *a.offset : 0;
  T* const x = static_cast<T*>(a.x);
  for (int64_t b = begin; b < end; ++b) {
    const int64_t at = b * kNf4Block, count = std::min(kNf4Block, a.rows * a.n - at);
    const float scale = nf4_scale(a, a.map, offset, b);
    const uint8_t* const codes = a.codes + at / 2;
    if (a.x_stride == a.n) {
      decode_block(codes, levels, scale, x + at, count);
      continue;
    }
    T block[kNf4Block];
    decode_block(codes, levels, scale, block, count);
    for (int64_t i = 0; i < count;) {
      const int64_t column = (at + i) % a.n, some = std::min(a.n - column, count - i);
      std::copy_n(block + i, some, x + (at + i) / a.n * a.x_stride + column);
      i += some;
    }
  }
}

}  // namespace

void nf4_decode(const Nf4Decode& a, const Launch& launch) {
  with_type(a.type, [&]<class T>() {
    launch.parallel_for(nf4_blocks(a), 256,
                        [&](int64_t begin, int64_t end) { decode_blocks<T>(a, begin, end); });
  });
}

}  // namespace compact::kernels::cpu
