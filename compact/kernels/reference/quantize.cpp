// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/quantize.h"

#include <algorithm>
#include <cmath>

#include "compact/kernels/reference/reference.h"

namespace compact::kernels::reference {
namespace {

constexpr int kLanes = 16;

// Sum of f(j) for j < count, in the order of the contract.
template <class F>
float lane_sum(int64_t count, F f) {
  float lane[kLanes] = {};
  for (int64_t j = 0; j < count; ++j) lane[j % kLanes] += f(j);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}

template <int kBits, Levels kLevels, Rounding kRounding, class T>
GroupScale scale_of(const T* x, int64_t count, Type type) {
  if constexpr (kLevels == Levels::kLloyd && kRounding == Rounding::kNearest) {
    const auto size = static_cast<float>(count);
    const float mean = lane_sum(count, [&](int64_t j) { return load(x[j]); }) / size;
    const float squares = lane_sum(count, [&](int64_t j) {
      const float d = load(x[j]) - mean;
      return d * d;
    });
    return normal_scale(mean, std::sqrt(squares / size), type);
  }
  float low = load(x[0]), high = low;
  for (int64_t j = 0; j < count; ++j) {
    const float value = load(x[j]);
    if (value != value) return {not_a_number(), not_a_number()};
    low = std::min(low, value);
    high = std::max(high, value);
  }
  return range_scale<kBits, kLevels>(low, high, type);
}

void put(void* scales, int64_t at, float value, Type type) {
  with_type(type, [&]<class S>() { store(static_cast<S*>(scales)[at], value); });
}
float get(const void* scales, int64_t at, Type type) {
  float value = 0;
  with_type(type, [&]<class S>() { value = load(static_cast<const S*>(scales)[at]); });
  return value;
}

// Calls body(group, first element, count, first byte of its codes).
template <class Body>
void for_groups(const QuantizeFormat& f, int64_t rows, int64_t n, Body body) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t g = 0; g < f.groups(n); ++g) {
      body(row * f.groups(n) + g, row * n + g * f.group, std::min(f.group, n - g * f.group),
           row * f.row_bytes(n) + g * (f.group * f.bits / 8));
    }
  }
}

}  // namespace

void quantize(const Quantize& a, const Launch&) {
  const QuantizeFormat& f = a.format;
  with_type(a.type, [&]<class T>() {
    with_format(f, [&]<int kBits, Levels kLevels, Rounding kRounding>() {
      for_groups(f, a.rows, a.n, [&](int64_t g, int64_t first, int64_t count, int64_t byte) {
        const T* x = static_cast<const T*>(a.x) + first;
        const GroupScale s = scale_of<kBits, kLevels, kRounding>(x, count, f.scale);
        put(a.scales, 2 * g, s.offset, f.scale);
        put(a.scales, 2 * g + 1, s.step, f.scale);
        const float inverse = inverse_of(s.step);
        const int64_t bytes = (count * kBits + 7) / 8;
        std::fill_n(a.codes + byte, bytes, uint8_t{0});
        for (int64_t j = 0; j < count; ++j) {
          const uint32_t word =
              philox(a.key, static_cast<uint64_t>(g * f.group / 8 + j / 8)).v[j % 8 / 2];
          const uint32_t random = j % 2 ? word >> 16 : word & 0xffffu;
          const uint32_t code =
              quantize_code<kBits, kLevels, kRounding>(load(x[j]), s.offset, inverse, random);
          a.codes[byte + j % bytes] |= static_cast<uint8_t>(code << (j / bytes * kBits));
        }
      });
    });
  });
}

void dequantize(const Dequantize& a, const Launch&) {
  const QuantizeFormat& f = a.format;
  with_type(a.type, [&]<class T>() {
    with_levels(f, [&]<int kBits, Levels kLevels>() {
      for_groups(f, a.rows, a.n, [&](int64_t g, int64_t first, int64_t count, int64_t byte) {
        const GroupScale s = {get(a.scales, 2 * g, f.scale), get(a.scales, 2 * g + 1, f.scale)};
        const int64_t bytes = (count * kBits + 7) / 8;
        for (int64_t j = 0; j < count; ++j) {
          const uint32_t code =
              a.codes[byte + j % bytes] >> (j / bytes * kBits) & ((1u << kBits) - 1);
          store(static_cast<T*>(a.x)[first + j], quantize_value<kBits, kLevels>(code, s));
        }
      });
    });
  });
}

}  // namespace compact::kernels::reference
