// SPDX-License-Identifier: Apache-2.0
// Matrices in NF4: a warp takes kBlocks blocks at a time, whose scales its lanes make once and hand
// on.
#include "compact/kernels/nf4.h"

#include "compact/kernels/cuda/cuda.cuh"
#include "compact/kernels/cuda/tiles.cuh"

namespace compact::kernels::cuda {
namespace {

constexpr int kTiles = 4, kBlocks = kTiles * kTile / static_cast<int>(kNf4Block);
static_assert(kBlocks <= kWarp && kThreads == 256);

// packed: four neighbours of a pack are in one row.
template <class T>
__global__ void decode(Nf4Decode a, bool packed, bool aligned) {
  __shared__ float levels[16], map[256];
  const bool nested = a.scale_codes != nullptr;
  if (threadIdx.x < 16) levels[threadIdx.x] = a.levels[threadIdx.x];
  if (nested) map[threadIdx.x] = a.map[threadIdx.x];
  __syncthreads();
  const float offset = nested ? *a.offset : 0.0f;
  const int64_t count = a.rows * a.n, blocks = nf4_blocks(a);
  T* const x = static_cast<T*>(a.x);
  for_warps((blocks + kBlocks - 1) / kBlocks, [&](int64_t run) {
    const int64_t own = run * kBlocks + lane();
    float scale = 0;
    if (lane() < kBlocks && own < blocks) scale = nf4_scale(a, map, offset, own);
#pragma unroll
    for (int p = 0; p < kTiles * kParts; ++p) {
      const int within = p * kPartTile + lane() * kPart;
      const int64_t at = run * kBlocks * kNf4Block + within, left = count - at;
      const float s = __shfl_sync(kAllLanes, scale, within / static_cast<int>(kNf4Block));
      if (left <= 0) continue;
      const auto codes = load_words<kPart / 2>(a.codes + at / 2, (left + 1) / 2,
                                               reinterpret_cast<uintptr_t>(a.codes) % 2 == 0);
      float values[kPart];
#pragma unroll
      for (int j = 0; j < kPart; ++j) {
        values[j] = levels[j % 2 ? codes.v[j / 2] & 15 : codes.v[j / 2] >> 4] * s;
      }
      if (packed) {
        const int64_t row = a.rows == 1 ? 0 : at / a.n;
        store_pack(x + at + row * (a.x_stride - a.n), values, left, aligned);
        continue;
      }
#pragma unroll
      for (int j = 0; j < kPart; ++j) {
        if (j < left) store(x[at + j + (at + j) / a.n * (a.x_stride - a.n)], values[j]);
      }
    }
  });
}

}  // namespace

void nf4_decode(const Nf4Decode& given, const Launch& launch) {
  Nf4Decode a = given;
  if (a.x_stride == a.n) {
    a.n = a.x_stride = a.rows * a.n;
    a.rows = 1;
  }
  if (a.rows * a.n == 0) return;
  const int64_t warps = (nf4_blocks(a) + kBlocks - 1) / kBlocks, each = kThreads / kWarp;
  // So few that reading the map is nothing beside what a block decodes.
  const unsigned grid = std::min(blocks_for(warps, each), static_cast<unsigned>(kRowBlocks));
  const bool packed = a.rows == 1 || (a.n % kPart == 0 && a.x_stride % kPart == 0);
  with_type(a.type, [&]<class T>() {
    const bool aligned = rows_aligned(static_cast<const T*>(a.x), a.rows == 1 ? 0 : a.x_stride);
    start("nf4_decode", launch, {grid, kThreads}, decode<T>, a, packed, aligned);
  });
}

}  // namespace compact::kernels::cuda
