// SPDX-License-Identifier: Apache-2.0
// One bit an element. A warp takes 1,024 elements: where all of them exist, eight neighbours in a
// lane are a byte (4-byte elements: four neighbours in each of two lanes); else word i of 32 bits
// is made by all lanes together.
#include "compact/kernels/cuda/cuda.cuh"
#include "compact/kernels/cuda/tiles.cuh"

namespace compact::kernels::cuda {
namespace {

constexpr int kWordBytes = 4, kBits = kWarp * kWarp;  // of a warp's turn
constexpr int kTiles = kBits / kTile, kTileBytes = kTile / 8;

// A lane's eight elements of a tile as words of memory, in one pack, or in two parts of the tile.
template <class U>
inline constexpr int kPacks = sizeof(U) == 4 ? kParts : 1;
template <class U>
using Pack = Raw<U, 8 / kPacks<U>>;
template <class U>
__device__ inline int pack_at(int pack) {
  return kPacks<U> == 1 ? lane() * 8 : part_at(pack);
}

// The bits of a lane's eight elements, and whether one of them is stray.
template <class U>
__device__ inline uint32_t set_bits(const BitPack& a, const Pack<U> (&packs)[kPacks<U>],
                                    bool& stray) {
  constexpr int kOfPack = 8 / kPacks<U>, kOfWord = 4 / sizeof(U), kSize = 8 * sizeof(U);
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t word = packs[j / kOfPack].v[j % kOfPack / kOfWord];
    const uint32_t u = static_cast<U>(word >> (j % kOfWord * kSize));
    const bool set = u - a.low < a.span;
    stray |= !set && u != a.other;
    bits |= static_cast<uint32_t>(set) << j;
  }
  return bits;
}

template <class U>
__device__ inline void pack_whole(const BitPack& a, int64_t at, bool& stray) {
  Pack<U> packs[kTiles][kPacks<U>];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int p = 0; p < kPacks<U>; ++p) {
      const U* from = static_cast<const U*>(a.x) + at + t * kTile + pack_at<U>(p);
      packs[t][p] = *reinterpret_cast<const Pack<U>*>(from);
    }
  }
  const bool odd = lane() % 2;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    uint32_t byte = set_bits<U>(a, packs[t], stray);
    int place = lane();
    if constexpr (kPacks < U >> 1) {  // the even lane has the first part's byte
      const uint32_t got = __shfl_xor_sync(kAllLanes, odd ? byte & 15 : byte >> 4, 1);
      byte = odd ? got | (byte & 0xf0u) : (byte & 15) | got << 4;
      place = lane() / 2 + (odd ? kTileBytes / 2 : 0);
    }
    a.bits[at / 8 + t * kTileBytes + place] = static_cast<uint8_t>(byte);
  }
}

template <class U>
__device__ inline void unpack_whole(const BitUnpack& a, int64_t at) {
  constexpr int kOfPack = 8 / kPacks<U>, kOfWord = 4 / sizeof(U), kSize = 8 * sizeof(U);
  uint32_t bits[kTiles][kPacks<U>];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int p = 0; p < kPacks<U>; ++p) {
      const int first = t * kTile + pack_at<U>(p);
      bits[t][p] = uint32_t{a.bits[(at + first) / 8]} >> first % 8;
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int p = 0; p < kPacks<U>; ++p) {
      Pack<U> pack = {};
#pragma unroll
      for (int j = 0; j < kOfPack; ++j) {
        const auto u = static_cast<U>(bits[t][p] >> j & 1 ? a.one : a.zero);
        pack.v[j / kOfWord] |= uint32_t{u} << (j % kOfWord * kSize);
      }
      U* to = static_cast<U*>(a.x) + at + t * kTile + pack_at<U>(p);
      *reinterpret_cast<Pack<U>*>(to) = pack;
    }
  }
}

template <class U>
__global__ void pack(BitPack a, bool aligned, bool packs) {
  const U* x = static_cast<const U*>(a.x);
  bool stray = false;
  for_warps((a.count + kBits - 1) / kBits, [&](int64_t turn) {
    const int64_t at = turn * kBits;
    if (packs && at + kBits <= a.count) return pack_whole<U>(a, at, stray);
    uint32_t mine = 0;
#pragma unroll 8
    for (int i = 0; i < kWarp; ++i) {
      const int64_t element = at + i * kWarp + lane();
      bool set = false;
      if (element < a.count) {
        const uint32_t u = x[element];
        set = u - a.low < a.span;
        stray |= !set && u != a.other;
      }
      const uint32_t word = __ballot_sync(kAllLanes, set);
      if (i == lane()) mine = word;
    }
    Words<uint8_t, kWordBytes> bytes;
#pragma unroll
    for (int j = 0; j < kWordBytes; ++j) bytes.v[j] = static_cast<uint8_t>(mine >> 8 * j);
    const int64_t byte = at / 8 + lane() * kWordBytes;
    store_words(a.bits + byte, bytes, (a.count + 7) / 8 - byte, aligned);
  });
  if (stray && a.strays) *a.strays = 1;  // all threads write the same value
}

template <class U>
__global__ void unpack(BitUnpack a, bool aligned, bool packs) {
  U* x = static_cast<U*>(a.x);
  for_warps((a.count + kBits - 1) / kBits, [&](int64_t turn) {
    const int64_t at = turn * kBits, byte = at / 8 + lane() * kWordBytes;
    if (packs && at + kBits <= a.count) return unpack_whole<U>(a, at);
    const auto bytes = load_words<kWordBytes>(a.bits + byte, (a.count + 7) / 8 - byte, aligned);
    uint32_t mine = 0;
#pragma unroll
    for (int j = 0; j < kWordBytes; ++j) mine |= uint32_t{bytes.v[j]} << 8 * j;
#pragma unroll 8
    for (int i = 0; i < kWarp; ++i) {
      const uint32_t word = __shfl_sync(kAllLanes, mine, i);
      const int64_t element = at + i * kWarp + lane();
      if (element < a.count) x[element] = static_cast<U>(word >> lane() & 1 ? a.one : a.zero);
    }
  });
}

bool words_aligned(const uint8_t* p) { return reinterpret_cast<uintptr_t>(p) % kWordBytes == 0; }

}  // namespace

void bit_pack(const BitPack& a, const Launch& launch) {
  if (a.count == 0) return;
  with_word(a.element, [&]<class U>() {
    start("bit_pack", launch, {blocks_for(a.count, kWarp * kThreads), kThreads}, pack<U>, a,
          words_aligned(a.bits), rows_aligned(static_cast<const U*>(a.x), 0));
  });
}

void bit_unpack(const BitUnpack& a, const Launch& launch) {
  if (a.count == 0) return;
  with_word(a.element, [&]<class U>() {
    start("bit_unpack", launch, {blocks_for(a.count, kWarp * kThreads), kThreads}, unpack<U>, a,
          words_aligned(a.bits), rows_aligned(static_cast<const U*>(a.x), 0));
  });
}

}  // namespace compact::kernels::cuda
