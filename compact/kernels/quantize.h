// SPDX-License-Identifier: Apache-2.0
// The values of the codes of kernels::Quantize: the arithmetic that every backend shares, element
// by element.
#pragma once

#include "compact/kernels/bfloat16.h"
#include "compact/kernels/kernels.h"

namespace compact::kernels {

// Level k of 2^bits, of least mean squared error for a standard normal (Lloyd 1982, Max 1960).
// Relative errors: .3634, .1175, .00950.
template <int kBits>
COMPACT_HOST_DEVICE constexpr float lloyd_level(int k) {
  constexpr int kHalf = 1 << kBits >> 1;
  const int at = k < kHalf ? kHalf - 1 - k : k - kHalf;
  float level = 0;
  if constexpr (kBits == 1) {
    level = 0.797884561f;
  } else if constexpr (kBits == 2) {
    level = at == 0 ? 0.452780035f : 1.510417608f;
  } else {
    static_assert(kBits == 4);
    // Selections, since a GPU would keep a table in each thread's local memory.
    const float first = at & 1 ? 0.388048299f : 0.128395030f;
    const float second = at & 1 ? 0.942340456f : 0.656759119f;
    const float third = at & 1 ? 1.618046386f : 1.256231197f;
    const float fourth = at & 1 ? 2.732589571f : 2.069017227f;
    const float low = at & 2 ? second : first, high = at & 2 ? fourth : third;
    level = at & 4 ? high : low;
  }
  return k < kHalf ? -level : level;
}

// As stored: x is about offset + step * level.
struct GroupScale {
  float offset, step;
};

COMPACT_HOST_DEVICE inline float not_a_number() { return float_of(0x7fc00000u); }

// x rounded to the type of scales: towards minus infinity, up, or to nearest.
COMPACT_HOST_DEVICE inline float scale_down(float x, Type type) {
  const uint32_t b = bits_of(x);
  if (type == Type::kFloat32 || (b & 0xffffu) == 0) return x;
  return float_of(((b >> 16) + (b >> 31)) << 16);
}
COMPACT_HOST_DEVICE inline float scale_up(float x, Type type) { return -scale_down(-x, type); }
COMPACT_HOST_DEVICE inline float scale_nearest(float x, Type type) {
  if (type == Type::kFloat32) return x;
  BFloat16 rounded;
  store(rounded, x);
  return load(rounded);
}

// A step too small to divide by is 0: the group is its offset, off by less than 2^-117.
COMPACT_HOST_DEVICE inline GroupScale checked(GroupScale s) {
  if (!(s.offset - s.offset == 0) || !(s.step - s.step == 0)) {
    return {not_a_number(), not_a_number()};
  }
  if (s.step < 0x1p-125f) s.step = 0;
  return s;
}

// Uniform levels from the least to the largest value: all lie within.
template <int kBits>
COMPACT_HOST_DEVICE inline GroupScale uniform_scale(float low, float high, Type type) {
  constexpr float kTop = (1 << kBits) - 1;
  const float offset = scale_down(low + 0.0f, type);  // one zero
  if (!(high - offset < 0x1.fp127f)) return {not_a_number(), not_a_number()};
  return checked({offset, scale_up(high / kTop - offset / kTop, type)});
}
// Lloyd's levels stretched over the range: all values lie within.
template <int kBits>
COMPACT_HOST_DEVICE inline GroupScale stretched_scale(float low, float high, Type type) {
  constexpr float kTop = lloyd_level<kBits>((1 << kBits) - 1);
  const float offset = scale_nearest(low / 2 + high / 2 + 0.0f, type);
  const float reach = high - offset > offset - low ? high - offset : offset - low;
  return checked({offset, scale_up(reach / kTop, type)});
}
template <int kBits>
COMPACT_HOST_DEVICE inline GroupScale positive_scale(float low, float high, Type type) {
  constexpr float kTop = (1 << kBits) - 2;
  const float reach = high > 0 ? high : 0;
  return checked({low - low, scale_up(reach / kTop, type)});  // an offset of 0, or NaN
}
template <int kBits, Levels kLevels>
COMPACT_HOST_DEVICE inline GroupScale range_scale(float low, float high, Type type) {
  if constexpr (kLevels == Levels::kUniform) {
    return uniform_scale<kBits>(low, high, type);
  } else if constexpr (kLevels == Levels::kPositive) {
    return positive_scale<kBits>(low, high, type);
  } else {
    return stretched_scale<kBits>(low, high, type);
  }
}
COMPACT_HOST_DEVICE inline GroupScale normal_scale(float mean, float deviation, Type type) {
  return checked({scale_nearest(mean, type), scale_nearest(deviation, type)});
}
COMPACT_HOST_DEVICE inline float inverse_of(float step) { return step == 0 ? 0.0f : 1 / step; }

// The code of one value; `random` has 16 bits and counts where rounding is stochastic.
template <int kBits, Levels kLevels, Rounding kRounding>
COMPACT_HOST_DEVICE inline uint32_t quantize_code(float x, float offset, float inverse,
                                                  uint32_t random) {
  constexpr int kTop = (1 << kBits) - 1;
  const float z = (x - offset) * inverse, u = static_cast<float>(random) * 0x1p-16f;
  if constexpr (kLevels == Levels::kUniform) {
    const float t = z + (kRounding == Rounding::kNearest ? 0.5f : u);
    return t < kTop ? static_cast<uint32_t>(t) : kTop;
  } else if constexpr (kLevels == Levels::kPositive) {
    if (!(x > 0)) return 0;
    const float t = z + (kRounding == Rounding::kNearest ? 0.5f : u);
    return 1 + (t < kTop - 1 ? static_cast<uint32_t>(t) : kTop - 1);
  } else if constexpr (kRounding == Rounding::kNearest) {
    uint32_t code = 0;
    for (int k = 0; k < kTop; ++k) {
      code += z > (lloyd_level<kBits>(k) + lloyd_level<kBits>(k + 1)) / 2;
    }
    return code;
  } else {
    uint32_t code = 0;
    float low = lloyd_level<kBits>(0), high = lloyd_level<kBits>(1);
    for (int k = 1; k < kTop; ++k) {
      const bool above = z >= lloyd_level<kBits>(k);
      code += above;
      low = above ? lloyd_level<kBits>(k) : low;
      high = above ? lloyd_level<kBits>(k + 1) : high;
    }
    return code + (u * (high - low) < z - low);
  }
}

// The least positive level stays above 0.
COMPACT_HOST_DEVICE inline float positive_level(uint32_t code) {
  return code == 0 ? 0.0f : code == 1 ? 0x1p-10f : static_cast<float>(code - 1);
}

template <int kBits, Levels kLevels>
COMPACT_HOST_DEVICE inline float quantize_value(uint32_t code, GroupScale s) {
  if constexpr (kLevels == Levels::kUniform) {
    return static_cast<float>(code) * s.step + s.offset;
  } else if constexpr (kLevels == Levels::kPositive) {
    return positive_level(code) * s.step + s.offset;
  } else {
    return lloyd_level<kBits>(static_cast<int>(code)) * s.step + s.offset;
  }
}

// Calls body.template operator()<bits, levels>(); Lloyd's levels have at most 4 bits, positive ones
// at least 2.
template <class F>
void with_levels(const QuantizeFormat& f, F&& body) {
  const auto levelled = [&]<int kBits>() {
    if constexpr (kBits <= 4) {
      if (f.levels == Levels::kLloyd) return body.template operator()<kBits, Levels::kLloyd>();
    }
    if constexpr (kBits >= 2) {
      if (f.levels == Levels::kPositive)
        return body.template operator()<kBits, Levels::kPositive>();
    }
    body.template operator()<kBits, Levels::kUniform>();
  };
  switch (f.bits) {
    case 1:
      return levelled.template operator()<1>();
    case 2:
      return levelled.template operator()<2>();
    case 4:
      return levelled.template operator()<4>();
    default:
      return levelled.template operator()<8>();
  }
}

// Calls body.template operator()<bits, levels, rounding>().
template <class F>
void with_format(const QuantizeFormat& f, F&& body) {
  with_levels(f, [&]<int kBits, Levels kLevels>() {
    f.rounding == Rounding::kNearest
        ? body.template operator()<kBits, kLevels, Rounding::kNearest>()
        : body.template operator()<kBits, kLevels, Rounding::kStochastic>();
  });
}

}  // namespace compact::kernels
