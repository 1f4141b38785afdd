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

// The key of each round of Philox, as a kernel's argument: constants that take no registers.
struct RoundKeys {
  uint32_t v[10][2];
};
inline RoundKeys round_keys(uint64_t key) {
  RoundKeys keys;
  for (uint32_t i = 0; i < 10; ++i) {
    keys.v[i][0] = static_cast<uint32_t>(key) + i * 0x9E3779B9u;
    keys.v[i][1] = static_cast<uint32_t>(key >> 32) + i * 0xBB67AE85u;
  }
  return keys;
}
using compact::philox;
__device__ inline Random4 philox(const RoundKeys& keys, uint64_t counter) {
  Random4 r = {{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}};
#pragma unroll
  for (int i = 0; i < 10; ++i) r = philox_round(r, keys.v[i][0], keys.v[i][1]);
  return r;
}

// Random words for a tile, two for the lane's part: its element j has 16 bits of word j / 2, the
// low ones first. A Philox call serves eight neighbours, `call` is the tile's first. Two lanes
// share the calls of their parts, of which the even one makes the first part's. All lanes must come
// here.
template <class Key>
__device__ inline void tile_words(uint32_t (&words)[kParts][2], const Key& key, uint64_t call) {
  const bool odd = lane() % 2;
  const Random4 mine = philox(key, call + static_cast<uint64_t>(lane() / 2 + odd * (kWarp / 2)));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t own = odd ? mine.v[i + 2] : mine.v[i];
    const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? mine.v[i] : mine.v[i + 2], 1);
    words[0][i] = odd ? other : own;
    words[1][i] = odd ? own : other;
  }
}
// The same bits, one element each.
__device__ inline void tile_bits(uint32_t (&bits)[kParts][kPart], uint64_t key, uint64_t call) {
  uint32_t words[kParts][2];
  tile_words(words, key, call);
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
#pragma unroll
    for (int j = 0; j < kPart; ++j)
      bits[p][j] = j % 2 ? words[p][j / 2] >> 16 : words[p][j / 2] & 0xffffu;
  }
}

}  // namespace compact::kernels::cuda
