// SPDX-License-Identifier: Apache-2.0
// Dropout: a warp takes a tile.
#include "compact/kernels/cuda/cuda.cuh"
#include "compact/kernels/cuda/tiles.cuh"

namespace compact::kernels::cuda {
namespace {

template <class T>
__global__ void drop(Dropout a, float scale, bool aligned) {
  for_warps((a.count + kTile - 1) / kTile, [&](int64_t tile) {
    const int64_t at = tile * kTile, left = a.count - at;
    uint32_t bits[kParts][kPart];
    tile_bits(bits, a.key, static_cast<uint64_t>(at / 8));
    float v[kParts][kPart];
    load_tile(v, static_cast<const T*>(a.x) + at, left, aligned);
#pragma unroll
    for (int i = 0; i < kParts * kPart; ++i) {
      float& x = v[i / kPart][i % kPart];
      x = bits[i / kPart][i % kPart] < a.dropped ? 0.0f : x * scale;
    }
    store_tile(static_cast<T*>(a.y) + at, v, left, aligned);
  });
}

}  // namespace

void dropout(const Dropout& a, const Launch& launch) {
  if (a.count == 0) return;
  with_type(a.type, [&]<class T>() {
    const bool aligned =
        rows_aligned(static_cast<const T*>(a.x), 0) && rows_aligned(static_cast<const T*>(a.y), 0);
    const unsigned blocks = blocks_for(a.count, kTile * kThreads / kWarp);
    start("dropout", launch, {blocks, kThreads}, drop<T>, a, dropout_scale(a.dropped), aligned);
  });
}

}  // namespace compact::kernels::cuda
