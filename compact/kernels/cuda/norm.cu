// SPDX-License-Identifier: Apache-2.0
// RMSNorm: one block per row.
#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels::cuda {
namespace {

template <class T, class W>
__global__ void forward(RmsNorm a, bool aligned) {
  constexpr int V = kPack<T>;
  const W* weight = static_cast<const W*>(a.weight);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.n;
    T* y = static_cast<T*>(a.y) + row * a.n;
    float sum = 0;
    for (int64_t i = threadIdx.x * V; i < a.n; i += blockDim.x * V) {
      float v[V];
      load_pack(v, x + i, a.n - i, aligned);
#pragma unroll
      for (int j = 0; j < V; ++j) sum += v[j] * v[j];
    }
    const float mean = block_reduce<Sum>(sum) / static_cast<float>(a.n);
    const float rstd = 1.0f / sqrtf(mean + a.eps);
    if (threadIdx.x == 0) a.rstd[row] = rstd;
    for (int64_t i = threadIdx.x * V; i < a.n; i += blockDim.x * V) {
      float v[V], w[V];
      load_pack(v, x + i, a.n - i, aligned);
      load_pack(w, weight + i, a.n - i, aligned);
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = v[j] * rstd * w[j];
      store_pack(y + i, v, a.n - i, aligned);
    }
  }
}

template <class T, class W>
__global__ void backward(RmsNormBackward a, bool aligned) {
  constexpr int V = kPack<T>;
  const W* weight = static_cast<const W*>(a.weight);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.n;
    const T* gy = static_cast<const T*>(a.gy) + row * a.n;
    const T* residual = a.residual ? static_cast<const T*>(a.residual) + row * a.n : nullptr;
    T* gx = static_cast<T*>(a.gx) + row * a.n;
    const float rstd = a.rstd[row];
    float sum = 0;
    for (int64_t i = threadIdx.x * V; i < a.n; i += blockDim.x * V) {
      float v[V], g[V], w[V];
      load_pack(v, x + i, a.n - i, aligned);
      load_pack(g, gy + i, a.n - i, aligned);
      load_pack(w, weight + i, a.n - i, aligned);
#pragma unroll
      for (int j = 0; j < V; ++j) sum += g[j] * w[j] * v[j];
    }
    const float dot = block_reduce<Sum>(sum);
    const float along = dot * rstd * rstd / static_cast<float>(a.n);
    for (int64_t i = threadIdx.x * V; i < a.n; i += blockDim.x * V) {
      float v[V], g[V], w[V], r[V];
      load_pack(v, x + i, a.n - i, aligned);
      load_pack(g, gy + i, a.n - i, aligned);
      load_pack(w, weight + i, a.n - i, aligned);
#pragma unroll
      for (int j = 0; j < V; ++j) g[j] = rstd * (g[j] * w[j] - v[j] * along);
      if (residual) {
        load_pack(r, residual + i, a.n - i, aligned);
#pragma unroll
        for (int j = 0; j < V; ++j) g[j] += r[j];
      }
      store_pack(gx + i, g, a.n - i, aligned);
    }
  }
}

inline constexpr int kRowLanes = 16;  // rows of a part that a block sums side by side

// parts[p, column]: blocks of [kRowLanes, kWarp] threads on (columns / kWarp, parts).
template <class T>
__global__ void weight_parts(RmsNormBackward a) {
  __shared__ float lanes[kRowLanes][kWarp];
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  const int64_t part = blockIdx.y;
  const int64_t begin = part * a.rows / kRmsNormParts, end = (part + 1) * a.rows / kRmsNormParts;
  const T* x = static_cast<const T*>(a.x);
  const T* gy = static_cast<const T*>(a.gy);
  float sum = 0;
  if (column < a.n) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kRowLanes) {
      sum += load(gy[row * a.n + column]) * (load(x[row * a.n + column]) * a.rstd[row]);
    }
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < a.n) {
#pragma unroll
    for (int i = 1; i < kRowLanes; ++i) sum += lanes[i][threadIdx.x];
    a.parts[part * a.n + column] = sum;
  }
}

template <class W>
__global__ void weight_sum(RmsNormBackward a) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= a.n) return;
  float sum = 0;
#pragma unroll
  for (int64_t part = 0; part < kRmsNormParts; ++part) sum += a.parts[part * a.n + column];
  store(static_cast<W*>(a.gweight)[column], sum);
}

}  // namespace

void rms_norm(const RmsNorm& a, const Launch& launch) {
  if (a.rows == 0 || a.n == 0) return;
  with_types(a.type, a.weight_type, [&]<class T, class W>() {
    const bool aligned = rows_aligned(static_cast<const T*>(a.x), a.n) &&
                         rows_aligned(static_cast<const W*>(a.weight), a.n) &&
                         rows_aligned(static_cast<const T*>(a.y), a.n);
    forward<T, W>
        <<<blocks_for(a.rows), threads_for(a.n / kPack<T>), 0, stream_of(launch)>>>(a, aligned);
  });
  check(cudaGetLastError(), "rms_norm");
}

void rms_norm_backward(const RmsNormBackward& a, const Launch& launch) {
  if (a.n == 0) return;
  const cudaStream_t stream = stream_of(launch);
  with_types(a.type, a.weight_type, [&]<class T, class W>() {
    if (a.gweight) {  // first: gx may alias gy
      const dim3 grid(static_cast<unsigned>((a.n + kWarp - 1) / kWarp), kRmsNormParts);
      weight_parts<T><<<grid, dim3(kWarp, kRowLanes), 0, stream>>>(a);
      const unsigned blocks = static_cast<unsigned>((a.n + kThreads - 1) / kThreads);
      weight_sum<W><<<blocks, kThreads, 0, stream>>>(a);
    }
    if (a.rows == 0) return;
    const bool aligned = rows_aligned(static_cast<const T*>(a.x), a.n) &&
                         rows_aligned(static_cast<const T*>(a.gy), a.n) &&
                         rows_aligned(static_cast<const W*>(a.weight), a.n) &&
                         rows_aligned(static_cast<const T*>(a.residual), a.n) &&
                         rows_aligned(static_cast<const T*>(a.gx), a.n);
    backward<T, W><<<blocks_for(a.rows), threads_for(a.n / kPack<T>), 0, stream>>>(a, aligned);
  });
  check(cudaGetLastError(), "rms_norm_backward");
}

}  // namespace compact::kernels::cuda
