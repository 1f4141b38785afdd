// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes as one value: Vec of f32, IVec and UVec of 32-bit integers. One AVX-512 register,
// on AVX2 two registers, elsewhere what the compiler makes of a vector of 64 bytes. Sixteen lanes
// on every machine, so that sums come out the same. Operators work lane by lane, also with a number
// for all lanes; comparisons give IVec, all bits set where they hold; (UVec)v has the bits of v.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__GNUC__) && !defined(__clang__)  // false warnings of GCC 12's own headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

#define COMPACT_INLINE inline __attribute__((always_inline))

namespace compact::kernels::cpu {

inline constexpr int kLanes = 16;

#if defined(__AVX2__) && !defined(__AVX512F__)
#define COMPACT_PAIRS_OF_REGISTERS

// A vector of two registers. GCC compiles comparisons of a longer vector than a register, and
// selections by them, to scalar instructions for each lane.
template <class T>
struct Pair {
  typedef T Half __attribute__((vector_size(8 * sizeof(T))));
  typedef int32_t Mask __attribute__((vector_size(32)));

  Pair() = default;
  COMPACT_INLINE Pair(Half a, Half b) : low(a), high(b) {}
  COMPACT_INLINE Pair(T x) : low(Half{} + x), high(Half{} + x) {}  // NOLINT: a number for all lanes
  template <class U>
  COMPACT_INLINE explicit Pair(Pair<U> v) : low((Half)v.low), high((Half)v.high) {}

#define COMPACT_LANES(op)                                  \
  friend COMPACT_INLINE Pair operator op(Pair a, Pair b) { \
    return Pair(a.low op b.low, a.high op b.high);         \
  }                                                        \
  friend COMPACT_INLINE Pair& operator op##=(Pair& a, Pair b) { return a = a op b; }
  COMPACT_LANES(+)
  COMPACT_LANES(-)
  COMPACT_LANES(*)
  COMPACT_LANES(/)
  COMPACT_LANES(&)
  COMPACT_LANES(|)
  COMPACT_LANES(<<)
  COMPACT_LANES(>>)
#undef COMPACT_LANES
#define COMPACT_LANES(op)                                                   \
  friend COMPACT_INLINE Pair<int32_t> operator op(Pair a, Pair b) {         \
    return Pair<int32_t>((Mask)(a.low op b.low), (Mask)(a.high op b.high)); \
  }
  COMPACT_LANES(<)
  COMPACT_LANES(>)
  COMPACT_LANES(>=)
  COMPACT_LANES(==)
  COMPACT_LANES(!=)
#undef COMPACT_LANES
  friend COMPACT_INLINE Pair operator-(Pair v) { return Pair(-v.low, -v.high); }

  Half low{}, high{};
};

typedef Pair<float> Vec;
typedef Pair<int32_t> IVec;
typedef Pair<uint32_t> UVec;

template <class T>
COMPACT_INLINE Pair<T> select(IVec which, Pair<T> a, Pair<T> b) {
  return Pair<T>(which.low ? a.low : b.low, which.high ? a.high : b.high);
}
// Values of another type; out of its range: whatever the instruction gives.
template <class To, class T>
COMPACT_INLINE To convert(Pair<T> v) {
  return To(__builtin_convertvector(v.low, typename To::Half),
            __builtin_convertvector(v.high, typename To::Half));
}
#else
typedef float Vec __attribute__((vector_size(64)));
typedef int32_t IVec __attribute__((vector_size(64)));
typedef uint32_t UVec __attribute__((vector_size(64)));

// a where `which` is set, b elsewhere.
template <class V>
COMPACT_INLINE V select(IVec which, V a, V b) {
  return which ? a : b;
}
template <class To, class V>
COMPACT_INLINE To convert(V v) {
  return __builtin_convertvector(v, To);
}
#endif

COMPACT_INLINE Vec splat(float x) { return Vec{} + x; }
COMPACT_INLINE UVec splat(uint32_t x) { return UVec{} + x; }

// Loads and stores a V at any alignment.
template <class V>
COMPACT_INLINE V load_raw(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
COMPACT_INLINE void store_raw(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}
#if defined(COMPACT_PAIRS_OF_REGISTERS)  // one register at a time: GCC copies a Pair through the
                                         // stack
template <class V>
requires requires { typename V::Half; }
COMPACT_INLINE V load_raw(const void* p) {
  typedef typename V::Half Half;
  return V(load_raw<Half>(p), load_raw<Half>(static_cast<const char*>(p) + sizeof(Half)));
}
template <class T>
COMPACT_INLINE void store_raw(void* p, Pair<T> v) {
  store_raw(p, v.low);
  store_raw(static_cast<char*>(p) + sizeof v.low, v.high);
}
#endif

// The lanes of v as an array.
COMPACT_INLINE std::array<float, kLanes> lanes(Vec v) {
  return std::bit_cast<std::array<float, kLanes>>(v);
}
COMPACT_INLINE std::array<uint32_t, kLanes> lanes(UVec v) {
  return std::bit_cast<std::array<uint32_t, kLanes>>(v);
}

// v, and x in the lanes from n on.
template <class V, class T>
COMPACT_INLINE V fill_from(V v, int n, T x) {
  auto each = lanes(v);
  for (int l = n < 0 ? 0 : n; l < kLanes; ++l) each[static_cast<size_t>(l)] = x;
  return std::bit_cast<V>(each);
}

// One value of all lanes, halves first: a fixed order.
template <class V, class Join>
COMPACT_INLINE auto across(V v, Join&& join) {
  auto lane = lanes(v);
  for (size_t h = kLanes / 2; h > 0; h /= 2) {
    for (size_t i = 0; i < h; ++i) lane[i] = join(lane[i], lane[i + h]);
  }
  return lane[0];
}

}  // namespace compact::kernels::cpu
