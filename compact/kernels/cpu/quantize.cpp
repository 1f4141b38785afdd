// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/quantize.h"

#include <algorithm>
#include <cmath>

#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/lanes8.h"

namespace compact::kernels::cpu {
namespace {

COMPACT_INLINE Vec minimum(Vec a, Vec b) { return select(b < a, b, a); }
COMPACT_INLINE Vec maximum(Vec a, Vec b) { return select(b > a, b, a); }

struct Range {
  float low, high;
  bool ordered;  // no NaN
};

// Lanes beyond a row's end repeat its first value.
template <class T>
COMPACT_INLINE Range range_of(const T* x, int64_t count) {
  const float first = load(*x);
  Vec low = splat(first), high = low;
  UVec broken{};
  for_lanes(count, [&](int64_t i, auto n) {
    Vec v = load(x + i, n);
    if constexpr (std::is_same_v<decltype(n), int>) {
      v = fill_from(v, n, first);
    }
    low = minimum(low, v);
    high = maximum(high, v);
    broken |= (UVec)(v != v);
  });
  const auto lows = lanes(low), highs = lanes(high);
  return {*std::ranges::min_element(lows), *std::ranges::max_element(highs),
          across(broken, [](uint32_t a, uint32_t b) { return a | b; }) == 0};
}

// A sum in the order that kernels/codecs.h defines: one running sum a lane.
template <class Term>
COMPACT_INLINE float lane_sum(int64_t count, Term&& term) {
  Vec sum{};
  for_lanes(count, [&](int64_t i, auto n) { sum += term(i, n); });
  return across(sum, [](float a, float b) { return a + b; });
}

template <int kBits, Levels kLevels, Rounding kRounding, class T>
GroupScale scale_of(const T* x, int64_t count, Type type) {
  if constexpr (kLevels == Levels::kLloyd && kRounding == Rounding::kNearest) {
    const auto size = static_cast<float>(count);
    const float mean = lane_sum(count, [&](int64_t i, auto n) { return load(x + i, n); }) / size;
    const float squares = lane_sum(count, [&](int64_t i, auto n) {
      Vec d = load(x + i, n) - mean;
      if constexpr (std::is_same_v<decltype(n), int>) {
        d = fill_from(d, n, 0.0f);
      }
      return d * d;
    });
    return normal_scale(mean, std::sqrt(squares / size), type);
  } else {
    const Range r = range_of(x, count);
    if (!r.ordered) return {not_a_number(), not_a_number()};
    return range_scale<kBits, kLevels>(r.low, r.high, type);
  }
}

// quantize_code() on all lanes.
template <int kBits, Levels kLevels, Rounding kRounding>
COMPACT_INLINE UVec codes_of(Vec x, float offset, float inverse, const uint16_t* random) {
  constexpr int kTop = (1 << kBits) - 1;
  const Vec z = (x - offset) * inverse;
  Vec u{};
  if constexpr (kRounding == Rounding::kStochastic) {
    u = convert<Vec>((IVec)load_halves(random)) * 0x1p-16f;
  }
  if constexpr (kLevels == Levels::kUniform) {
    const Vec t = z + (kRounding == Rounding::kNearest ? splat(0.5f) : u);
    const Vec top = splat(static_cast<float>(kTop));
    return (UVec)convert<IVec>(select(t < top, t, top));
  } else if constexpr (kLevels == Levels::kPositive) {
    const Vec t = z + (kRounding == Rounding::kNearest ? splat(0.5f) : u);
    const Vec top = splat(static_cast<float>(kTop - 1));
    const UVec code = (UVec)convert<IVec>(select(t < top, t, top)) + 1u;
    return select(x > 0.0f, code, UVec{});
  } else if constexpr (kRounding == Rounding::kNearest) {
    IVec below{};
    for (int k = 0; k < kTop; ++k) {
      below += z > splat((lloyd_level<kBits>(k) + lloyd_level<kBits>(k + 1)) / 2);
    }
    return (UVec)-below;
  } else {
    IVec below{};
    Vec low = splat(lloyd_level<kBits>(0)), high = splat(lloyd_level<kBits>(1));
    for (int k = 1; k < kTop; ++k) {
      const IVec above = z >= splat(lloyd_level<kBits>(k));
      below += above;
      low = select(above, splat(lloyd_level<kBits>(k)), low);
      high = select(above, splat(lloyd_level<kBits>(k + 1)), high);
    }
    return (UVec) - (below + (u * (high - low) < z - low));
  }
}

template <int kBits, Levels kLevels, Rounding kRounding, class T>
COMPACT_INLINE void quantize_group(const T* x, int64_t count, GroupScale s, const uint16_t* random,
                                   uint8_t* codes) {
  constexpr int kPlanes = 8 / kBits;
  const float inverse = inverse_of(s.step);
  const int64_t bytes = (count * kBits + 7) / 8;
  for_lanes(bytes, [&](int64_t i, auto n) {
    UVec byte{};
    for (int p = 0; p < kPlanes; ++p) {
      const int64_t at = p * bytes + i, left = count - at;
      Vec v{};
      if (left >= kLanes && std::is_same_v<decltype(n), Full>) {
        v = load(x + at);
      } else if (left > 0) {
        v = load(x + at, static_cast<int>(std::min<int64_t>(left, lanes_of(n))));
      }
      UVec code = codes_of<kBits, kLevels, kRounding>(v, s.offset, inverse, random + at);
      if (left < kLanes) code = fill_from(code, static_cast<int>(left), 0u);
      byte |= code << (p * kBits);
    }
    store_bytes(codes + i, byte, n);
  });
}

template <int kBits, Levels kLevels, class T>
COMPACT_INLINE void dequantize_group(T* x, int64_t count, GroupScale s, const uint8_t* codes) {
  constexpr int kPlanes = 8 / kBits;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  const int64_t bytes = (count * kBits + 7) / 8;
  for_lanes(bytes, [&](int64_t i, auto n) {
    const UVec byte = load_bytes(codes + i, n);
    for (int p = 0; p < kPlanes; ++p) {
      const int64_t at = p * bytes + i, left = count - at;
      const UVec code = byte >> (p * kBits) & kMask;
      Vec level{};
      if constexpr (kLevels == Levels::kUniform) {
        level = convert<Vec>((IVec)code);
      } else if constexpr (kLevels == Levels::kPositive) {
        level = convert<Vec>((IVec)code - 1);
        level = select(code == 1u, splat(0x1p-10f), level);
        level = select(code == 0u, Vec{}, level);
      } else {
        for (int k = 0; k < 1 << kBits; ++k) {
          level = select(code == static_cast<uint32_t>(k), splat(lloyd_level<kBits>(k)), level);
        }
      }
      const Vec v = level * s.step + s.offset;
      if (left >= kLanes && std::is_same_v<decltype(n), Full>) {
        store(x + at, v);
      } else if (left > 0) {
        store(x + at, v, static_cast<int>(std::min<int64_t>(left, lanes_of(n))));
      }
    }
  });
}

// Where a group lies.
struct Place {
  int64_t first, count, byte;  // element, elements, first byte of its codes
};
Place place_of(const QuantizeFormat& f, int64_t n, int64_t group) {
  const int64_t row = group / f.groups(n), g = group % f.groups(n);
  return {row * n + g * f.group, std::min(f.group, n - g * f.group),
          row * f.row_bytes(n) + g * (f.group * f.bits / 8)};
}

// Stores a group's offset and step. Dispatches on their type once a group: around the loops that
// would compile these for each type.
COMPACT_INLINE void set_scale(Type type, void* scales, int64_t g, GroupScale s) {
  with_type(type, [&]<class S>() {
    store(static_cast<S*>(scales)[2 * g], s.offset);
    store(static_cast<S*>(scales)[2 * g + 1], s.step);
  });
}
COMPACT_INLINE GroupScale scale_at(Type type, const void* scales, int64_t g) {
  GroupScale s{};
  with_type(type, [&]<class S>() {
    const S* at = static_cast<const S*>(scales) + 2 * g;
    s = {load(at[0]), load(at[1])};
  });
  return s;
}

}  // namespace

void quantize(const Quantize& a, const Launch& launch) {
  if (a.rows * a.n == 0) return;
  const QuantizeFormat& f = a.format;
  // How many groups share one call of philox_words, and how many calls a group needs.
  const int64_t batch = std::max<int64_t>(1, kPhiloxHalves / f.group), all = a.rows * f.groups(a.n);
  const int64_t calls = std::max<int64_t>(1, f.group / kPhiloxHalves);
  with_type(a.type, [&]<class T>() {
    with_format(f, [&]<int kBits, Levels kLevels, Rounding kRounding>() {
      launch.parallel_for((all + batch - 1) / batch, 32, [&](int64_t begin, int64_t end) {
        alignas(64) uint16_t random[2048 + 2 * kLanes] = {};
        for (int64_t b = begin; b < end; ++b) {
          if constexpr (kRounding == Rounding::kStochastic) {
            for (int64_t c = 0; c < calls; ++c) {
              philox_halves(a.key, static_cast<uint64_t>((b * calls + c) * kPhiloxCounters),
                            random + c * kPhiloxHalves);
            }
          }
          for (int64_t g = b * batch; g < std::min(all, (b + 1) * batch); ++g) {
            const Place at = place_of(f, a.n, g);
            const T* x = static_cast<const T*>(a.x) + at.first;
            const GroupScale s = scale_of<kBits, kLevels, kRounding>(x, at.count, f.scale);
            set_scale(f.scale, a.scales, g, s);
            quantize_group<kBits, kLevels, kRounding>(
                x, at.count, s, random + (g - b * batch) * f.group, a.codes + at.byte);
          }
        }
      });
    });
  });
}

void dequantize(const Dequantize& a, const Launch& launch) {
  if (a.rows * a.n == 0) return;
  const QuantizeFormat& f = a.format;
  with_type(a.type, [&]<class T>() {
    with_levels(f, [&]<int kBits, Levels kLevels>() {
      launch.parallel_for(a.rows * f.groups(a.n), 128, [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) {
          const Place at = place_of(f, a.n, g);
          dequantize_group<kBits, kLevels>(static_cast<T*>(a.x) + at.first, at.count,
                                           scale_at(f.scale, a.scales, g), a.codes + at.byte);
        }
      });
    });
  });
}

}  // namespace compact::kernels::cpu
