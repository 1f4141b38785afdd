// SPDX-License-Identifier: Apache-2.0
// One bit an element: a warp takes 32 words of 32 bits, word i of them all lanes together.
#include "compact/kernels/cuda/cuda.cuh"
#include "compact/kernels/cuda/tiles.cuh"

namespace compact::kernels::cuda {
namespace {

constexpr int kWordBytes = 4, kBits = kWarp * kWarp;  // of a warp's turn

template <class U>
__global__ void pack(BitPack a, bool aligned) {
  const U* x = static_cast<const U*>(a.x);
  bool stray = false;
  for_warps((a.count + kBits - 1) / kBits, [&](int64_t turn) {
    const int64_t at = turn * kBits;
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
__global__ void unpack(BitUnpack a, bool aligned) {
  U* x = static_cast<U*>(a.x);
  for_warps((a.count + kBits - 1) / kBits, [&](int64_t turn) {
    const int64_t at = turn * kBits, byte = at / 8 + lane() * kWordBytes;
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
          words_aligned(a.bits));
  });
}

void bit_unpack(const BitUnpack& a, const Launch& launch) {
  if (a.count == 0) return;
  with_word(a.element, [&]<class U>() {
    start("bit_unpack", launch, {blocks_for(a.count, kWarp * kThreads), kThreads}, unpack<U>, a,
          words_aligned(a.bits));
  });
}

}  // namespace compact::kernels::cuda
