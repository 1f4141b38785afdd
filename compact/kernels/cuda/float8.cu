// SPDX-License-Identifier: Apache-2.0
// 8-bit floats with a power of two per block: a warp takes a block, which is a tile.
#include "compact/kernels/float8.h"

#include "compact/kernels/cuda/cuda.cuh"
#include "compact/kernels/cuda/tiles.cuh"

namespace compact::kernels::cuda {
namespace {

static_assert(kTile == kFloat8Block);

// Where block b begins, and how many of its elements exist.
struct Place {
  int64_t at, left;
};
__device__ inline Place place_of(int64_t b, int64_t blocks, int64_t n) {
  const int64_t column = b % blocks * kFloat8Block;
  return {b / blocks * n + column, n - column};
}

__global__ void pack(Float8Pack a, int64_t blocks, bool aligned) {
  if (held_back(a.guard)) return;
  const Float8Format format = float8_format(a.is_signed);
  for_warps(a.rows * blocks, [&](int64_t b) {
    const Place place = place_of(b, blocks, a.n);
    float x[kParts][kPart];
    load_tile(x, a.x + place.at, place.left, aligned);
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kParts * kPart; ++i) {
      largest = max(largest, float8_size(x[i / kPart][i % kPart]));
    }
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, step));
    }
    const float scale = float8_scale(largest), inverse = float8_inverse(scale);
    if (lane() == 0) a.scales[b] = scale;
    uint32_t random[kParts][kPart];
    tile_bits(random, a.key, static_cast<uint64_t>(kWarp * b));
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      Words<uint8_t, kPart> codes;
#pragma unroll
      for (int j = 0; j < kPart; ++j) {
        codes.v[j] = float8_code(format, x[p][j], inverse, random[p][j]);
      }
      store_words(a.codes + place.at + part_at(p), codes, place.left - part_at(p), aligned);
    }
  });
}

__global__ void unpack(Float8Unpack a, int64_t blocks, bool aligned) {
  const Float8Format format = float8_format(a.is_signed);
  for_warps(a.rows * blocks, [&](int64_t b) {
    const Place place = place_of(b, blocks, a.n);
    const float scale = a.scales[b];
    float x[kParts][kPart];
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const auto codes =
          load_words<kPart>(a.codes + place.at + part_at(p), place.left - part_at(p), aligned);
#pragma unroll
      for (int j = 0; j < kPart; ++j) x[p][j] = float8_value(format, codes.v[j], scale);
    }
    store_tile(a.x + place.at, x, place.left, aligned);
  });
}

// Launches over the blocks of [rows, n].
template <class Args>
void over_blocks(void (*kernel)(Args, int64_t, bool), const Args& a, const Launch& launch,
                 const char* name) {
  const int64_t blocks = (a.n + kFloat8Block - 1) / kFloat8Block;
  if (a.rows * blocks == 0) return;
  const unsigned grid = blocks_for(a.rows * blocks, kThreads / kWarp);
  const bool aligned = rows_aligned(a.x, a.n) && reinterpret_cast<uintptr_t>(a.codes) % kPart == 0;
  start(name, launch, {grid, kThreads}, kernel, a, blocks, aligned);
}

}  // namespace

void float8_pack(const Float8Pack& a, const Launch& launch) {
  over_blocks(pack, a, launch, "float8_pack");
}

void float8_unpack(const Float8Unpack& a, const Launch& launch) {
  over_blocks(unpack, a, launch, "float8_unpack");
}

}  // namespace compact::kernels::cuda
