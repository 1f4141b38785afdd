// SPDX-License-Identifier: Apache-2.0
// Quantization in groups: a warp takes a group; a lane makes every 32nd byte of its codes.
#include "compact/kernels/quantize.h"

#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kLanes = 16;  // of the sums of the contract

struct Place {
  int64_t first, count, byte;
};
__device__ inline Place place_of(const QuantizeFormat& f, int64_t n, int64_t group) {
  const int64_t row = group / f.groups(n), g = group % f.groups(n), left = n - g * f.group;
  return {row * n + g * f.group, left < f.group ? left : f.group,
          row * f.row_bytes(n) + g * (f.group * f.bits / 8)};
}
__device__ inline int lane() { return static_cast<int>(threadIdx.x % kWarp); }

// Sum of f(j) for j < count, lane j%16 after lane j%16, then by halves; the same in every thread.
template <class F>
__device__ inline float lane_sum(int64_t count, F f) {
  float sum = 0;
  if (lane() < kLanes) {
    for (int64_t j = lane(); j < count; j += kLanes) sum += f(j);
  }
#pragma unroll
  for (int half = kLanes / 2; half > 0; half /= 2) {
    const float other = __shfl_down_sync(kAll, sum, half);
    if (lane() < half) sum += other;
  }
  return __shfl_sync(kAll, sum, 0);
}

template <int kBits, Levels kLevels, Rounding kRounding, class T>
__device__ inline GroupScale scale_of(const T* x, int64_t count, Type type) {
  if constexpr (kLevels == Levels::kLloyd && kRounding == Rounding::kNearest) {
    const float size = static_cast<float>(count);
    const float mean = lane_sum(count, [&](int64_t j) { return load(x[j]); }) / size;
    const float squares = lane_sum(count, [&](int64_t j) {
      const float d = load(x[j]) - mean;
      return d * d;
    });
    return normal_scale(mean, sqrtf(squares / size), type);
  } else {
    float low = load(x[0]), high = low;
    bool broken = false;
    for (int64_t j = lane(); j < count; j += kWarp) {
      const float value = load(x[j]);
      broken |= value != value;
      low = fminf(low, value);
      high = fmaxf(high, value);
    }
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      low = fminf(low, __shfl_xor_sync(kAll, low, step));
      high = fmaxf(high, __shfl_xor_sync(kAll, high, step));
    }
    if (__any_sync(kAll, broken)) return {not_a_number(), not_a_number()};
    return range_scale<kBits, kLevels>(low, high, type);
  }
}

template <int kBits, Levels kLevels, Rounding kRounding, class T, class S>
__global__ void quantize_groups(Quantize a) {
  const QuantizeFormat& f = a.format;
  for_warps(a.rows * f.groups(a.n), [&](int64_t g) {
    const Place at = place_of(f, a.n, g);
    const T* x = static_cast<const T*>(a.x) + at.first;
    const GroupScale s = scale_of<kBits, kLevels, kRounding>(x, at.count, f.scale);
    if (lane() == 0) {
      store(static_cast<S*>(a.scales)[2 * g], s.offset);
      store(static_cast<S*>(a.scales)[2 * g + 1], s.step);
    }
    const float inverse = inverse_of(s.step);
    const int64_t bytes = (at.count * kBits + 7) / 8;
    for (int64_t k = lane(); k < bytes; k += kWarp) {
      uint32_t byte = 0;
      for (int p = 0; p < 8 / kBits; ++p) {
        const int64_t j = p * bytes + k;
        if (j >= at.count) break;
        uint32_t random = 0;
        if constexpr (kRounding == Rounding::kStochastic) {
          const uint32_t word =
              philox(a.key, static_cast<uint64_t>(g * f.group / 8 + j / 8)).v[j % 8 / 2];
          random = j % 2 ? word >> 16 : word & 0xffffu;
        }
        byte |= quantize_code<kBits, kLevels, kRounding>(load(x[j]), s.offset, inverse, random)
                << (p * kBits);
      }
      a.codes[at.byte + k] = static_cast<uint8_t>(byte);
    }
  });
}

template <int kBits, Levels kLevels, class T, class S>
__global__ void dequantize_groups(Dequantize a) {
  const QuantizeFormat& f = a.format;
  for_warps(a.rows * f.groups(a.n), [&](int64_t g) {
    const Place at = place_of(f, a.n, g);
    const S* scales = static_cast<const S*>(a.scales) + 2 * g;
    const GroupScale s = {load(scales[0]), load(scales[1])};
    const int64_t bytes = (at.count * kBits + 7) / 8;
    for (int64_t k = lane(); k < bytes; k += kWarp) {
      const uint32_t byte = a.codes[at.byte + k];
      for (int p = 0; p < 8 / kBits; ++p) {
        const int64_t j = p * bytes + k;
        if (j >= at.count) break;
        const uint32_t code = byte >> (p * kBits) & ((1u << kBits) - 1);
        store(static_cast<T*>(a.x)[at.first + j], quantize_value<kBits, kLevels>(code, s));
      }
    }
  });
}

}  // namespace

void quantize(const Quantize& a, const Launch& launch) {
  if (a.rows * a.n == 0) return;
  const unsigned grid = blocks_for(a.rows * a.format.groups(a.n), kThreads / kWarp);
  with_type(a.format.scale, [&]<class S>() {
    with_type(a.type, [&]<class T>() {
      with_format(a.format, [&]<int kBits, Levels kLevels, Rounding kRounding>() {
        quantize_groups<kBits, kLevels, kRounding, T, S>
            <<<grid, kThreads, 0, stream_of(launch)>>>(a);
      });
    });
  });
  check(cudaGetLastError(), "quantize");
}

void dequantize(const Dequantize& a, const Launch& launch) {
  if (a.rows * a.n == 0) return;
  const unsigned grid = blocks_for(a.rows * a.format.groups(a.n), kThreads / kWarp);
  with_type(a.format.scale, [&]<class S>() {
    with_type(a.type, [&]<class T>() {
      with_format(a.format, [&]<int kBits, Levels kLevels, Rounding>() {
        dequantize_groups<kBits, kLevels, T, S><<<grid, kThreads, 0, stream_of(launch)>>>(a);
      });
    });
  });
  check(cudaGetLastError(), "dequantize");
}

}  // namespace compact::kernels::cuda
