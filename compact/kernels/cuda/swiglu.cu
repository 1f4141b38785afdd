// SPDX-License-Identifier: Apache-2.0
// SwiGLU: one block per row, a thread takes V neighbours (one where rows are not aligned).
#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels::cuda {
namespace {

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// gate * sigmoid(gate) as it is stored.
template <class T>
__device__ inline float rounded_silu(float gate) {
  T out;
  store(out, gate * sigmoid(gate));
  return load(out);
}

template <class T, int V>
__global__ void forward(SwiGlu a) {
  constexpr bool kAligned = V > 1;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* gates = static_cast<const T*>(a.gate_up) + row * 2 * a.m;
    for (int64_t i = threadIdx.x * V; i < a.m; i += blockDim.x * V) {
      float gate[V], up[V];
      load_pack(gate, gates + i, V, kAligned);
#pragma unroll
      for (int j = 0; j < V; ++j) gate[j] = rounded_silu<T>(gate[j]);
      if (a.silu) store_pack(static_cast<T*>(a.silu) + row * a.m + i, gate, V, kAligned);
      if (a.product) {
        load_pack(up, gates + a.m + i, V, kAligned);
#pragma unroll
        for (int j = 0; j < V; ++j) gate[j] *= up[j];
        store_pack(static_cast<T*>(a.product) + row * a.m + i, gate, V, kAligned);
      }
    }
  }
}

template <class T, int V>
__global__ void backward(SwiGluBackward a) {
  constexpr bool kAligned = V > 1;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* gates = static_cast<const T*>(a.gate_up) + row * 2 * a.m;
    T* grads = static_cast<T*>(a.ggate_up) + row * 2 * a.m;
    for (int64_t i = threadIdx.x * V; i < a.m; i += blockDim.x * V) {
      float g[V], gate[V], up[V], silu[V];
      load_pack(g, static_cast<const T*>(a.gproduct) + row * a.m + i, V, kAligned);
      load_pack(gate, gates + i, V, kAligned);
      load_pack(up, gates + a.m + i, V, kAligned);
      if (a.silu) {
        load_pack(silu, static_cast<const T*>(a.silu) + row * a.m + i, V, kAligned);
      } else {
#pragma unroll
        for (int j = 0; j < V; ++j) silu[j] = rounded_silu<T>(gate[j]);
      }
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float s = sigmoid(gate[j]);
        silu[j] *= g[j];
        gate[j] = g[j] * up[j] * (s + gate[j] * s * (1.0f - s));
      }
      store_pack(grads + i, gate, V, kAligned);
      store_pack(grads + a.m + i, silu, V, kAligned);
    }
  }
}

}  // namespace

void swiglu(const SwiGlu& a, const Launch& launch) {
  if (a.rows == 0 || a.m == 0) return;
  with_type(a.type, [&]<class T>() {
    constexpr int V = kPack<T>;
    const bool aligned = rows_aligned(static_cast<const T*>(a.gate_up), a.m) &&
                         rows_aligned(static_cast<const T*>(a.silu), a.m) &&
                         rows_aligned(static_cast<const T*>(a.product), a.m);
    const auto kernel = aligned ? forward<T, V> : forward<T, 1>;
    start("swiglu", launch, {blocks_for(a.rows), threads_for(a.m / (aligned ? V : 1))}, kernel, a);
  });
}

void swiglu_backward(const SwiGluBackward& a, const Launch& launch) {
  if (a.rows == 0 || a.m == 0) return;
  with_type(a.type, [&]<class T>() {
    constexpr int V = kPack<T>;
    const bool aligned = rows_aligned(static_cast<const T*>(a.gproduct), a.m) &&
                         rows_aligned(static_cast<const T*>(a.gate_up), a.m) &&
                         rows_aligned(static_cast<const T*>(a.silu), a.m) &&
                         rows_aligned(static_cast<const T*>(a.ggate_up), a.m);
    const auto kernel = aligned ? backward<T, V> : backward<T, 1>;
    start("swiglu_backward", launch, {blocks_for(a.rows), threads_for(a.m / (aligned ? V : 1))},
          kernel, a);
  });
}

}  // namespace compact::kernels::cuda
