// SPDX-License-Identifier: Apache-2.0
// A group by itself, such as the short one at the end of a row: byte k of its codes in lane k % 32.
#pragma once

#include "compact/kernels/cuda/group_scale.cuh"

namespace compact::kernels::cuda {

template <class F>
__device__ inline float short_sum(int64_t count, F f) {
  float sum = 0;
  if (lane() < kSums) {
    for (int64_t j = lane(); j < count; j += kSums) sum += f(j);
  }
#pragma unroll
  for (int half = kSums / 2; half > 0; half /= 2) {
    const float other = __shfl_down_sync(kAllLanes, sum, half);
    if (lane() < half) sum += other;
  }
  return __shfl_sync(kAllLanes, sum, 0);
}

template <int kBits, Levels kLevels, Rounding kRounding, class T>
__device__ inline GroupScale short_scale(const T* x, int64_t count, Type type) {
  if constexpr (kNormal<kLevels, kRounding>) {
    const float size = static_cast<float>(count);
    const float mean = short_sum(count, [&](int64_t j) { return load(x[j]); }) / size;
    const float squares = short_sum(count, [&](int64_t j) {
      const float d = load(x[j]) - mean;
      return d * d;
    });
    return normal_scale(mean, sqrtf(squares / size), type);
  } else {
    float low = load(x[0]), high = low;
    int broken = 0;
    for (int64_t j = lane(); j < count; j += kWarp) {
      const float value = load(x[j]);
      broken |= value != value;
      low = fminf(low, value);
      high = fmaxf(high, value);
    }
    return spread_scale<kBits, kLevels>(low, high, broken, kWarp, type);
  }
}

// Where a group (rows after rows) begins, in elements and in bytes, and its elements and bytes.
struct Place {
  int64_t first, byte, count, bytes;
};
__device__ inline Place place_of(const QuantizeFormat& f, int64_t n, int64_t group) {
  const int64_t row = group / f.groups(n), at = group % f.groups(n) * f.group;
  const int64_t count = n - at < f.group ? n - at : f.group;
  return {row * n + at, row * f.row_bytes(n) + at * f.bits / 8, count, (count * f.bits + 7) / 8};
}

template <int kBits, Levels kLevels, Rounding kRounding, class T>
__device__ inline void quantize_tail(const Quantize& a, int64_t row) {
  const QuantizeFormat& f = a.format;
  const int64_t group = (row + 1) * f.groups(a.n) - 1;
  const Place at = place_of(f, a.n, group);
  const T* x = static_cast<const T*>(a.x) + at.first;
  const GroupScale s = short_scale<kBits, kLevels, kRounding>(x, at.count, f.scale);
  if (lane() == 0) write_scale(a.scales, f.scale, group, s, false);
  const float inverse = inverse_of(s.step);
  for (int64_t k = lane(); k < at.bytes; k += kWarp) {
    uint32_t byte = 0;
    for (int p = 0; p < 8 / kBits; ++p) {
      const int64_t j = p * at.bytes + k;
      if (j >= at.count) break;
      uint32_t random = 0;
      if constexpr (kRounding == Rounding::kStochastic) {
        const Random4 four = philox(a.key, static_cast<uint64_t>(group * f.group / 8 + j / 8));
        const int pair = static_cast<int>(j % 8 / 2);
        const uint32_t word = pair == 0   ? four.v[0]
                              : pair == 1 ? four.v[1]
                              : pair == 2 ? four.v[2]
                                          : four.v[3];
        random = j % 2 ? word >> 16 : word & 0xffffu;
      }
      byte |= quantize_code<kBits, kLevels, kRounding>(load(x[j]), s.offset, inverse, random)
              << (p * kBits);
    }
    a.codes[at.byte + k] = static_cast<uint8_t>(byte);
  }
}

template <int kBits, Levels kLevels, class T>
__device__ inline void dequantize_group(const Dequantize& a, int64_t group) {
  const Place at = place_of(a.format, a.n, group);
  const GroupScale s = read_scale(a.scales, a.format.scale, group, false);
  for (int64_t k = lane(); k < at.bytes; k += kWarp) {
    const uint32_t byte = a.codes[at.byte + k];
    for (int p = 0; p < 8 / kBits; ++p) {
      const int64_t j = p * at.bytes + k;
      if (j >= at.count) break;
      const uint32_t code = byte >> (p * kBits) & ((1u << kBits) - 1);
      store(static_cast<T*>(a.x)[at.first + j], quantize_value<kBits, kLevels>(code, s));
    }
  }
}

}  // namespace compact::kernels::cuda
