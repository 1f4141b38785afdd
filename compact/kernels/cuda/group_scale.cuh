// SPDX-License-Identifier: Apache-2.0
// Computes offset and step of a group from the values that lanes hold, and stores them.
#pragma once

#include "compact/kernels/cuda/cuda.cuh"
#include "compact/kernels/cuda/tiles.cuh"
#include "compact/kernels/quantize.h"

namespace compact::kernels::cuda {

inline constexpr int kSums = 16;  // sums of the contract run side by side

template <Levels kLevels, Rounding kRounding>
inline constexpr bool kNormal = kLevels == Levels::kLloyd&& kRounding == Rounding::kNearest;

// Offset and step from what each of `lanes` lanes has seen.
template <int kBits, Levels kLevels>
__device__ inline GroupScale spread_scale(float low, float high, int broken, int lanes, Type type) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    low = fminf(low, __shfl_xor_sync(kAllLanes, low, step));
    high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, step));
    broken |= __shfl_xor_sync(kAllLanes, broken, step);
  }
  if (broken) return {not_a_number(), not_a_number()};
  return range_scale<kBits, kLevels>(low, high, type);
}

// A group's sum in the order that kernels/codecs.h defines, in all of its `lanes` lanes; each lane
// gives the partial sums 4 (lane % 4) + j.
__device__ inline float joined(float (&sum)[kPart], int lanes) {
  const int begin = lane() / lanes * lanes;
#pragma unroll
  for (int half = kSums / 2; half >= kPart; half /= 2) {
#pragma unroll
    for (int j = 0; j < kPart; ++j) sum[j] += __shfl_xor_sync(kAllLanes, sum[j], half / kPart);
  }
  const float all = (sum[0] + sum[2]) + (sum[1] + sum[3]);
  return __shfl_sync(kAllLanes, all, begin);
}

// Adds the elements of a group in the order that kernels/codecs.h defines, element j to sum j % 16:
// `get` gives those of a step.
template <class Get, class F>
__device__ inline float contract_sum(Get get, int lanes, int steps, F of) {
  const int begin = lane() / lanes * lanes + lane() % (kSums / kPart);
  float sum[kPart] = {};
  for (int s = 0; s < steps; ++s) {
    float x[kPart];
    get(x, s);
    for (int q = 0; q < lanes; q += kSums / kPart) {
#pragma unroll
      for (int j = 0; j < kPart; ++j) sum[j] += of(__shfl_sync(kAllLanes, x[j], begin + q));
    }
  }
  return joined(sum, lanes);
}

// Offset and step of the group that `lanes` lanes hold in so many steps.
template <int kBits, Levels kLevels, Rounding kRounding, class Get>
__device__ inline GroupScale held_scale(Get get, int lanes, int steps, Type type) {
  if constexpr (kNormal<kLevels, kRounding>) {
    const float size = static_cast<float>(lanes * steps * kPart);
    const float mean = contract_sum(get, lanes, steps, [](float v) { return v; }) / size;
    const float squares =
        contract_sum(get, lanes, steps, [&](float v) { return (v - mean) * (v - mean); });
    return normal_scale(mean, sqrtf(squares / size), type);
  } else {
    float x[kPart];
    get(x, 0);
    float low = x[0], high = low;
    int broken = 0;
    for (int s = 0; s < steps; ++s) {
      get(x, s);
#pragma unroll
      for (int j = 0; j < kPart; ++j) {
        broken |= x[j] != x[j];
        low = fminf(low, x[j]);
        high = fmaxf(high, x[j]);
      }
    }
    return spread_scale<kBits, kLevels>(low, high, broken, lanes, type);
  }
}

// Offset and step of group number g, as they are stored.
template <class S>
__device__ inline void write_scale(void* scales, int64_t g, GroupScale s, bool aligned) {
  Words<S, 2> both;
  store(both.v[0], s.offset);
  store(both.v[1], s.step);
  store_words(static_cast<S*>(scales) + 2 * g, both, 2, aligned);
}
__device__ inline void write_scale(void* scales, Type type, int64_t g, GroupScale s, bool aligned) {
  type == Type::kFloat32 ? write_scale<float>(scales, g, s, aligned)
                         : write_scale<BFloat16>(scales, g, s, aligned);
}
template <class S>
__device__ inline GroupScale read_scale(const void* scales, int64_t g, bool aligned) {
  const auto both = load_words<2>(static_cast<const S*>(scales) + 2 * g, 2, aligned);
  return {load(both.v[0]), load(both.v[1])};
}
__device__ inline GroupScale read_scale(const void* scales, Type type, int64_t g, bool aligned) {
  return type == Type::kFloat32 ? read_scale<float>(scales, g, aligned)
                                : read_scale<BFloat16>(scales, g, aligned);
}

}  // namespace compact::kernels::cuda
