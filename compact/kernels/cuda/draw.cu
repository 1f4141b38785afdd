// SPDX-License-Identifier: Apache-2.0
// Random matrices: a thread makes the four elements of one Philox call.
#include "compact/kernels/cuda/cuda.cuh"
#include "compact/kernels/normal.h"

namespace compact::kernels::cuda {
namespace {

template <class T>
__global__ void fill(Draw a, bool aligned) {
  const int64_t groups = (a.count + 3) / 4;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; t < groups; t += stride) {
    const Random4 random = philox(a.key, static_cast<uint64_t>(t));
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = sample(a.distribution, random.v[j]) * a.scale;
    store_pack(static_cast<T*>(a.out) + t * 4, v, a.count - t * 4, aligned);
  }
}

}  // namespace

void draw(const Draw& a, const Launch& launch) {
  if (a.count == 0) return;
  with_type(a.type, [&]<class T>() {
    const bool aligned = rows_aligned(static_cast<const T*>(a.out), 0);
    start("draw", launch, {blocks_for(a.count, 4 * kThreads), kThreads}, fill<T>, a, aligned);
  });
}

}  // namespace compact::kernels::cuda
