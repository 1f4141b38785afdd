// SPDX-License-Identifier: Apache-2.0
// The subsampled randomized Hadamard transform: one block holds a row in shared memory. A thread
// takes 16 elements through four butterfly stages in registers at a time; a gap of one word after
// every 16 keeps these accesses on different banks.
#include <bit>
#include <cmath>

#include "compact/kernels/cuda/cuda.cuh"
#include "compact/kernels/gpu.h"

namespace compact::kernels::cuda {
namespace {

__device__ inline int place(int i) { return i + (i >> 4); }

__device__ inline float signed_by(uint32_t word, int64_t i, float x) {
  return word >> (i & 31) & 1u ? -x : x;
}

// kStages butterfly stages of distances h, 2h, ... on the k elements from `offset` on.
template <int kStages>
__device__ inline void butterflies(float* row, int offset, int k, int h) {
  constexpr int kRadix = 1 << kStages;
  for (int t = threadIdx.x; t < k / kRadix; t += blockDim.x) {
    const int base = offset + t / h * h * kRadix + t % h;
    float v[kRadix];
#pragma unroll
    for (int j = 0; j < kRadix; ++j) v[j] = row[place(base + j * h)];
#pragma unroll
    for (int d = 1; d < kRadix; d *= 2) {
#pragma unroll
      for (int j = 0; j < kRadix; ++j) {
        if ((j & d) == 0) {
          const float a = v[j], b = v[j + d];
          v[j] = a + b;
          v[j + d] = a - b;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kRadix; ++j) row[place(base + j * h)] = v[j];
  }
  __syncthreads();
}

constexpr int kRowThreads = 512;
constexpr int kTurn =
    31 * kWarp;              // elements whose signs a warp reads at a time, wherever they begin
constexpr int kIndices = 6;  // of a thread, which it holds for all rows

// The coordinates that a thread takes out, or puts in.
struct Indices {
  int held[kIndices];
  __device__ Indices(const SrhtPlan& plan) {
#pragma unroll
    for (int i = 0; i < kIndices; ++i) {
      const int j = static_cast<int>(threadIdx.x + i * blockDim.x);
      held[i] = j < plan.r ? plan.index[j] : 0;
    }
  }
  // Calls body(j, index[j]) for the thread's j.
  template <class Body>
  __device__ void each(const SrhtPlan& plan, Body body) const {
#pragma unroll
    for (int i = 0; i < kIndices; ++i) {
      const int j = static_cast<int>(threadIdx.x + i * blockDim.x);
      if (j < plan.r) body(j, held[i]);
    }
    for (int j = static_cast<int>(threadIdx.x + kIndices * blockDim.x); j < plan.r;
         j += static_cast<int>(blockDim.x)) {
      body(j, plan.index[j]);
    }
  }
};

// Unscaled Hadamard transform of row[offset, offset + k), k a power of two.
__device__ inline void hadamard(float* row, int offset, int k) {
  int h = 1;
  for (; h * 16 <= k; h *= 16) butterflies<4>(row, offset, k, h);
  switch (k / h) {
    case 2:
      butterflies<1>(row, offset, k, h);
      break;
    case 4:
      butterflies<2>(row, offset, k, h);
      break;
    case 8:
      butterflies<3>(row, offset, k, h);
      break;
  }
}

// row[offset + i] <- +- scale * row[offset + i], signs from bit `first` on. A warp reads 32 words
// of them at a time.
__device__ inline void flip(float* row, int offset, int k, const uint32_t* signs, int64_t first,
                            float scale) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), shift = static_cast<int>(first % 32);
  const int64_t last = (first + k - 1) / 32;
  for (int base = static_cast<int>(threadIdx.x / kWarp) * kTurn; base < k;
       base += static_cast<int>(blockDim.x / kWarp) * kTurn) {
    const int64_t word = (first + base) / 32 + lane;
    const uint32_t mine = word <= last ? signs[word] : 0;
    for (int turn = 0; turn < kTurn / kWarp && base + turn * kWarp < k; ++turn) {
      const int bit = turn * kWarp + lane, i = base + bit;
      const uint32_t mask = __shfl_sync(0xffffffffu, mine, (bit + shift) / 32);
      if (i >= k) continue;
      float& x = row[place(offset + i)];
      x = signed_by(mask, bit + shift, x * scale);
    }
  }
  __syncthreads();
}

// Sizes and factors that both directions use beside the plan.
struct Shape {
  int n, k;
  float half_scale;  // 1 / sqrt(k)
  float out_scale;   // sqrt(n / r)
  bool aligned;      // rows may be read (forward) or written (transpose) in packs
};

template <class T>
__global__ void __launch_bounds__(kRowThreads, 2) forward(Srht a, Shape s) {
  constexpr int V = kPack<T>;
  float* row = shared_floats();
  const Indices indices(a.plan);
  const int rest = s.n - s.k;
  for (int64_t t = blockIdx.x; t < a.rows; t += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + t * a.x_stride;
    for (int i = threadIdx.x * V; i < s.n; i += blockDim.x * V) {
      float v[V];
      load_pack(v, x + i, s.n - i, s.aligned);
      const uint32_t word = a.plan.signs[i / 32];  // a pack does not cross words
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (i + j < s.n) row[place(i + j)] = signed_by(word, i + j, v[j]);
      }
    }
    __syncthreads();
    hadamard(row, 0, s.k);
    if (rest > 0) {
      for (int i = threadIdx.x; i < s.k; i += blockDim.x) row[place(i)] *= s.half_scale;
      __syncthreads();
      flip(row, rest, s.k, a.plan.signs, s.n, 1.0f);
      hadamard(row, rest, s.k);
    }
    T* z = static_cast<T*>(a.z) + t * a.plan.r;
    indices.each(a.plan, [&](int j, int i) {
      const float half = i >= rest ? s.half_scale : 1.0f;  // before `rest` it was applied above
      store(z[j], row[place(i)] * half * s.out_scale);
    });
    __syncthreads();
  }
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, 2) transpose(SrhtTranspose a, Shape s) {
  constexpr int V = kPack<float>;
  float* row = shared_floats();
  const Indices indices(a.plan);
  const int rest = s.n - s.k;
  for (int64_t t = blockIdx.x; t < a.rows; t += gridDim.x) {
    const T* z = static_cast<const T*>(a.z) + t * a.plan.r;
    for (int i = threadIdx.x; i < s.n; i += blockDim.x) row[place(i)] = 0.0f;
    __syncthreads();
    indices.each(a.plan, [&](int j, int i) { row[place(i)] = load(z[j]) * s.out_scale; });
    __syncthreads();
    if (rest > 0) {
      hadamard(row, rest, s.k);
      flip(row, rest, s.k, a.plan.signs, s.n, s.half_scale);
    }
    hadamard(row, 0, s.k);
    float* x = a.x + t * s.n;
    for (int i = threadIdx.x * V; i < s.n; i += blockDim.x * V) {
      float v[V];
      const uint32_t word = a.plan.signs[i / 32];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (i + j >= s.n) break;
        const float scaled = row[place(i + j)] * (i + j < s.k ? s.half_scale : 1.0f);
        v[j] = signed_by(word, i + j, scaled);
      }
      store_pack(x + i, v, s.n - i, s.aligned);
    }
    __syncthreads();
  }
}

Shape shape_of(const SrhtPlan& plan, bool aligned) {
  const int64_t k = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(plan.n)));
  return {.n = static_cast<int>(plan.n),
          .k = static_cast<int>(k),
          .half_scale = 1.0f / std::sqrt(static_cast<float>(k)),
          .out_scale = std::sqrt(static_cast<float>(plan.n) / static_cast<float>(plan.r)),
          .aligned = aligned};
}

// Launches with a row in shared memory; throws where the device has less.
template <class Args>
void launch_rows(void (*kernel)(Args, Shape), const Args& a, const Shape& s, const Launch& launch,
                 const char* name) {
  const auto bytes = static_cast<size_t>(srht_row_bytes(s.n));
  if (bytes > 48 * 1024) {  // more has to be asked for
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (status != cudaSuccess) {
      (void)cudaGetLastError();
      throw std::runtime_error(cat("[cuda] ", name, ": a row of ", s.n, " needs ", bytes,
                                   " bytes of shared memory, more than this device has"));
    }
  }
  start(name, launch,
        {blocks_for(std::min(a.rows, kRowBlocks)), threads_for(s.k / 16, kRowThreads), bytes},
        kernel, a, s);
}

}  // namespace

void srht(const Srht& a, const Launch& launch) {
  if (a.rows == 0 || a.plan.r == 0) return;
  with_type(a.type, [&]<class T>() {
    const bool aligned = rows_aligned(static_cast<const T*>(a.x), a.x_stride);
    launch_rows(forward<T>, a, shape_of(a.plan, aligned), launch, "srht");
  });
}

void srht_transpose(const SrhtTranspose& a, const Launch& launch) {
  if (a.rows == 0 || a.plan.r == 0) return;
  with_type(a.type, [&]<class T>() {
    const bool aligned = rows_aligned(a.x, a.plan.n);
    launch_rows(transpose<T>, a, shape_of(a.plan, aligned), launch, "srht_transpose");
  });
}

}  // namespace compact::kernels::cuda
