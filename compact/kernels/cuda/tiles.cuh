// SPDX-License-Identifier: Apache-2.0
// Tiles of kTile neighbours that a warp takes: lane l holds the packs of four that begin at 4 l and
// at 128 + 4 l, so that every access of a warp is contiguous, whatever the type.
#pragma once

#include "compact/kernels/cuda/common.cuh"

namespace compact::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kPart = 4, kParts = 2, kPartTile = kWarp * kPart, kTile = kParts * kPartTile;

__device__ inline int lane() { return static_cast<int>(threadIdx.x % kWarp); }
// Where the lane's part begins in its tile.
__device__ inline int part_at(int part) { return part * kPartTile + lane() * kPart; }

// The tile at `from`, of which `left` elements exist (the others read as 0).
template <class T>
__device__ inline void load_tile(float (&to)[kParts][kPart], const T* from, int64_t left,
                                 bool aligned) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    load_pack(to[p], from + part_at(p), left - part_at(p), aligned);
  }
}
template <class T>
__device__ inline void store_tile(T* to, const float (&from)[kParts][kPart], int64_t left,
                                  bool aligned) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    store_pack(to + part_at(p), from[p], left - part_at(p), aligned);
  }
}

// The 16 random bits of every element of a tile, where a Philox call serves eight neighbours and
// `call` is the tile's first. Two lanes share a call for each of their parts: the even one makes the
// first part's. All lanes must come here.
__device__ inline void tile_bits(uint32_t (&bits)[kParts][kPart], uint64_t key, uint64_t call) {
  const int odd = lane() % 2;
  const Random4 mine = philox(key, call + static_cast<uint64_t>(lane() / 2 + odd * (kWarp / 2)));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t own = odd ? mine.v[i + 2] : mine.v[i];
    const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? mine.v[i] : mine.v[i + 2], 1);
    const uint32_t words[kParts] = {odd ? other : own, odd ? own : other};
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      bits[p][2 * i] = words[p] & 0xffffu;
      bits[p][2 * i + 1] = words[p] >> 16;
    }
  }
}

}  // namespace compact::kernels::cuda
