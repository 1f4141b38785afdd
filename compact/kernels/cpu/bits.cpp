// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/simd.h"

namespace compact::kernels::cpu {
namespace {

// Sixteen elements, widened.
template <class U>
COMPACT_INLINE UVec words(const U* p) {
  typedef U Narrow __attribute__((vector_size(16 * sizeof(U))));
  if constexpr (sizeof(U) == 4)
    return load_raw<UVec>(p);
  else
    return widen(__builtin_convertvector(load_raw<Narrow>(p), HVec));
}

// Bit l of the result: lane l of a comparison.
COMPACT_INLINE uint32_t lane_bits(IVec mask) {
#if defined(__AVX512F__)
  return _mm512_cmpneq_epi32_mask((__m512i)mask, _mm512_setzero_si512());
#elif defined(COMPACT_PAIRS_OF_REGISTERS)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask.low) |
                               _mm256_movemask_ps((__m256)mask.high) << 8);
#else
  uint32_t bits = 0;
  for (int l = 0; l < kLanes; ++l) bits |= (mask[l] != 0 ? 1u : 0u) << l;
  return bits;
#endif
}
COMPACT_INLINE UVec of_bits(uint32_t bits, uint32_t one, uint32_t zero) {
#if defined(__AVX512F__)
  return (UVec)_mm512_mask_mov_epi32(_mm512_set1_epi32(static_cast<int>(zero)),
                                     static_cast<__mmask16>(bits),
                                     _mm512_set1_epi32(static_cast<int>(one)));
#else
  static constexpr auto kEach = [] {
    std::array<uint32_t, kLanes> each{};
    for (size_t l = 0; l < kLanes; ++l) each[l] = 1u << l;
    return each;
  }();
  return select((splat(bits) & load_raw<UVec>(kEach.data())) != 0u, splat(one), splat(zero));
#endif
}

// Elements of a range of parallel_for: whole bytes, whole lanes.
constexpr int64_t kRun = 1 << 14;

template <class U>
bool pack_run(const BitPack& a, int64_t begin, int64_t end) {
  const U* x = static_cast<const U*>(a.x);
  uint32_t stray = 0;
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    const UVec u = words(x + i);
    const uint32_t set = lane_bits((IVec)(u - a.low < a.span));
    stray |= ~(set | lane_bits((IVec)(u == a.other))) & 0xffffu;
    const auto both = static_cast<uint16_t>(set);
    a.bits[i / 8] = static_cast<uint8_t>(both);
    a.bits[i / 8 + 1] = static_cast<uint8_t>(both >> 8);
  }
  for (; i < end; i += 8) {
    uint32_t byte = 0;
    for (int64_t j = i; j < std::min(end, i + 8); ++j) {
      const bool set = x[j] - a.low < a.span;
      byte |= (set ? 1u : 0u) << (j - i);
      stray |= !set && x[j] != a.other;
    }
    a.bits[i / 8] = static_cast<uint8_t>(byte);
  }
  return stray != 0;
}

template <class U>
void unpack_run(const BitUnpack& a, int64_t begin, int64_t end) {
  U* x = static_cast<U*>(a.x);
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    const uint32_t bits = a.bits[i / 8] | uint32_t{a.bits[i / 8 + 1]} << 8;
    const UVec v = of_bits(bits, a.one, a.zero);
    if constexpr (sizeof(U) == 4) {
      store_raw(x + i, v);
    } else {
      typedef U Narrow __attribute__((vector_size(16 * sizeof(U))));
      const Narrow n = __builtin_convertvector(narrow(v), Narrow);
      std::memcpy(x + i, &n, sizeof n);
    }
  }
  for (; i < end; ++i) x[i] = static_cast<U>(a.bits[i / 8] >> i % 8 & 1 ? a.one : a.zero);
}

}  // namespace

void bit_pack(const BitPack& a, const Launch& launch) {
  std::atomic<bool> strays = false;
  with_word(a.element, [&]<class U>() {
    launch.parallel_for((a.count + kRun - 1) / kRun, 1, [&](int64_t begin, int64_t end) {
      if (pack_run<U>(a, begin * kRun, std::min(a.count, end * kRun))) strays = true;
    });
  });
  if (strays && a.strays) *a.strays = 1;
}

void bit_unpack(const BitUnpack& a, const Launch& launch) {
  with_word(a.element, [&]<class U>() {
    launch.parallel_for((a.count + kRun - 1) / kRun, 1, [&](int64_t begin, int64_t end) {
      unpack_run<U>(a, begin * kRun, std::min(a.count, end * kRun));
    });
  });
}

}  // namespace compact::kernels::cpu
