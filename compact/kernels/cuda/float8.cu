// SPDX-License-Identifier: Apache-2.0
// 8-bit floats with a power of two per block: a warp takes a block, a lane eight neighbours of it.
#include "compact/kernels/float8.h"

#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels::cuda {
namespace {

constexpr int kShare = 8;  // elements of a lane, and of a Philox call
static_assert(kWarp * kShare == kFloat8Block);

// Where the lane's part of block b begins, and how many of its elements exist.
struct Part {
  int64_t at, left;
};
__device__ inline Part part_of(int64_t b, int64_t blocks, int64_t n) {
  const int64_t column = b % blocks * kFloat8Block + threadIdx.x % kWarp * kShare;
  return {b / blocks * n + column, n - column};
}

__global__ void pack(Float8Pack a, int64_t blocks) {
  const Float8Format format = float8_format(a.is_signed);
  for_warps(a.rows * blocks, [&](int64_t b) {
    const Part part = part_of(b, blocks, a.n);
    float x[kShare];
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kShare; ++j) {
      x[j] = j < part.left ? a.x[part.at + j] : 0.0f;
      largest = max(largest, bits_of(x[j]) & 0x7fffffffu);
    }
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    const float scale = float8_scale(largest), inverse = float8_inverse(scale);
    const int lane = threadIdx.x % kWarp;
    if (lane == 0) a.scales[b] = scale;
    const Random4 random = philox(a.key, static_cast<uint64_t>(kWarp * b + lane));
#pragma unroll
    for (int j = 0; j < kShare; ++j) {
      const uint32_t word = random.v[j / 2];
      if (j >= part.left) continue;
      a.codes[part.at + j] =
          float8_code(format, x[j], inverse, j % 2 ? word >> 16 : word & 0xffffu);
    }
  });
}

__global__ void unpack(Float8Unpack a, int64_t blocks) {
  const Float8Format format = float8_format(a.is_signed);
  for_warps(a.rows * blocks, [&](int64_t b) {
    const Part part = part_of(b, blocks, a.n);
    const float scale = a.scales[b];
#pragma unroll
    for (int j = 0; j < kShare; ++j) {
      if (j < part.left) a.x[part.at + j] = float8_value(format, a.codes[part.at + j], scale);
    }
  });
}

// Launches over the blocks of [rows, n].
template <class Args>
void over_blocks(void (*kernel)(Args, int64_t), const Args& a, const Launch& launch,
                 const char* name) {
  const int64_t blocks = (a.n + kFloat8Block - 1) / kFloat8Block;
  if (a.rows * blocks == 0) return;
  const unsigned grid = blocks_for(a.rows * blocks, kThreads / kWarp);
  kernel<<<grid, kThreads, 0, stream_of(launch)>>>(a, blocks);
  check(cudaGetLastError(), name);
}

}  // namespace

void float8_pack(const Float8Pack& a, const Launch& launch) {
  over_blocks(pack, a, launch, "float8_pack");
}

void float8_unpack(const Float8Unpack& a, const Launch& launch) {
  over_blocks(unpack, a, launch, "float8_unpack");
}

}  // namespace compact::kernels::cuda
