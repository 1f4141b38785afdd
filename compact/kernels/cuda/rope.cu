// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: one block per token, a thread takes V neighbouring pairs.
#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels::cuda {
namespace {

template <class T, int V>
__global__ void rotate(Rope a) {
  constexpr bool kAligned = V > 1;
  const int half = static_cast<int>(a.dim / 2);
  const int packs = static_cast<int>(a.heads) * (half / V);
  for (int64_t token = blockIdx.x; token < a.tokens; token += gridDim.x) {
    T* x = static_cast<T*>(a.x) + token * a.row_stride;
    const float* cosines = a.cos + token % a.length * half;
    const float* sines = a.sin + token % a.length * half;
    for (int p = threadIdx.x; p < packs; p += blockDim.x) {
      const int head = p / (half / V), i = p % (half / V) * V;
      T* at = x + int64_t{head} * a.head_stride + i;
      float first[V], second[V], c[V], s[V], lower[V], upper[V];
      load_pack(first, at, V, kAligned);
      load_pack(second, at + half, V, kAligned);
      load_pack(c, cosines + i, V, kAligned);
      load_pack(s, sines + i, V, kAligned);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float sine = a.inverse ? -s[j] : s[j];
        lower[j] = first[j] * c[j] - second[j] * sine;
        upper[j] = second[j] * c[j] + first[j] * sine;
      }
      store_pack(at, lower, V, kAligned);
      store_pack(at + half, upper, V, kAligned);
    }
  }
}

}  // namespace

void rope(const Rope& a, const Launch& launch) {
  if (a.tokens == 0 || a.heads == 0 || a.dim < 2) return;
  with_type(a.type, [&]<class T>() {
    constexpr int V = kPack<T>;
    const int64_t half = a.dim / 2;
    const bool aligned = rows_aligned(static_cast<const T*>(a.x), a.row_stride) &&
                         rows_aligned(a.cos, half) && rows_aligned(a.sin, half) && half % V == 0 &&
                         a.head_stride % V == 0;
    const int threads = threads_for(a.heads * half / (aligned ? V : 1));
    const auto kernel = aligned ? rotate<T, V> : rotate<T, 1>;
    kernel<<<blocks_for(a.tokens), threads, 0, stream_of(launch)>>>(a);
  });
  check(cudaGetLastError(), "rope");
}

}  // namespace compact::kernels::cuda
