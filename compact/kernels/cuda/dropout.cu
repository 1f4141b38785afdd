// SPDX-License-Identifier: Apache-2.0
// Dropout: a thread treats the eight elements of one Philox call.
#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels::cuda {
namespace {

template <class T>
__global__ void drop(Dropout a, float scale, bool aligned) {
  const int64_t groups = (a.count + 7) / 8;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; t < groups; t += stride) {
    const Random4 random = philox(a.key, static_cast<uint64_t>(t));
    const int64_t left = a.count - t * 8;
    float v[8];
    load_pack(v, static_cast<const T*>(a.x) + t * 8, left, aligned);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t word = random.v[j / 2], bits = j % 2 ? word >> 16 : word & 0xffffu;
      v[j] = bits < a.dropped ? 0.0f : v[j] * scale;
    }
    store_pack(static_cast<T*>(a.y) + t * 8, v, left, aligned);
  }
}

}  // namespace

void dropout(const Dropout& a, const Launch& launch) {
  if (a.count == 0) return;
  with_type(a.type, [&]<class T>() {
    const bool aligned =
        rows_aligned(static_cast<const T*>(a.x), 0) && rows_aligned(static_cast<const T*>(a.y), 0);
    drop<T><<<blocks_for(a.count, 8 * kThreads), kThreads, 0, stream_of(launch)>>>(
        a, dropout_scale(a.dropped), aligned);
  });
  check(cudaGetLastError(), "dropout");
}

}  // namespace compact::kernels::cuda
