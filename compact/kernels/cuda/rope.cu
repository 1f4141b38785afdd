// SPDX-License-Identifier: Apache-2.0
// Rotary embedding: a block takes a token. A thread turns one column of V pairs in several heads,
// with its angles in registers.
#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels::cuda {
namespace {

constexpr int kColumns = 4;      // pairs of a thread where rows are aligned
constexpr int kThreadHeads = 4;  // heads of a thread, at least, where there are so many

// Threads [columns, heads that are turned side by side].
template <class T, int V>
__global__ void rotate(Rope a) {
  constexpr bool kAligned = V > 1;
  const int half = static_cast<int>(a.dim / 2);
  for (int64_t token = blockIdx.x; token < a.tokens; token += gridDim.x) {
    T* x = static_cast<T*>(a.x) + token * a.row_stride;
    const float* cosines = a.cos + token % a.length * half;
    const float* sines = a.sin + token % a.length * half;
    for (int i = static_cast<int>(threadIdx.x) * V; i < half;
         i += static_cast<int>(blockDim.x) * V) {
      float c[V], s[V];
      load_pack(c, cosines + i, V, kAligned);
      load_pack(s, sines + i, V, kAligned);
#pragma unroll
      for (int j = 0; j < V; ++j) s[j] = a.inverse ? -s[j] : s[j];
      for (int64_t head = threadIdx.y; head < a.heads; head += blockDim.y) {
        T* at = x + head * a.head_stride + i;
        float first[V], second[V], lower[V], upper[V];
        load_pack(first, at, V, kAligned);
        load_pack(second, at + half, V, kAligned);
#pragma unroll
        for (int j = 0; j < V; ++j) {
          lower[j] = first[j] * c[j] - second[j] * s[j];
          upper[j] = second[j] * c[j] + first[j] * s[j];
        }
        store_pack(at, lower, V, kAligned);
        store_pack(at + half, upper, V, kAligned);
      }
    }
  }
}

}  // namespace

void rope(const Rope& a, const Launch& launch) {
  if (a.tokens == 0 || a.heads == 0 || a.dim < 2) return;
  with_type(a.type, [&]<class T>() {
    const int64_t half = a.dim / 2;
    const bool aligned = rows_aligned(static_cast<const T*>(a.x), a.row_stride) &&
                         rows_aligned(a.cos, half) && rows_aligned(a.sin, half) &&
                         a.head_stride % kColumns == 0;
    const int64_t columns = std::min<int64_t>(half / (aligned ? kColumns : 1), kThreads);
    const int64_t heads =
        std::clamp<int64_t>(a.heads / kThreadHeads, 1, std::max<int64_t>(1, kThreads / columns));
    const dim3 threads(static_cast<unsigned>(columns), static_cast<unsigned>(heads));
    const auto kernel = aligned ? rotate<T, kColumns> : rotate<T, 1>;
    start("rope", launch, {blocks_for(a.tokens), threads}, kernel, a);
  });
}

}  // namespace compact::kernels::cuda
