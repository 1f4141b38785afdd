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

__device__ inline float signed_by(uint32_t word, int i, float x) {
  return float_of(bits_of(x) ^ (word << (31 - i) & 0x80000000u));
}

// kStages butterfly stages of distances h = 2^log, 2 h, ... on the k elements from `offset` on. The
// first ones, of h = 1, take what change(v, i) makes of v, the elements from i on. Later ones have
// an h that is a multiple of 16.
template <int kStages, bool kFirst, class Change>
__device__ inline void butterflies(float* row, int offset, int k, int log, Change change) {
  constexpr int kRadix = 1 << kStages;
  for (int t = threadIdx.x; t < k / kRadix; t += blockDim.x) {
    const int base = offset + (t >> log << (log + kStages)) + (t & ((1 << log) - 1));
    float* first = row + place(base);
    const auto run = [&](auto at) {
      float v[kRadix];
#pragma unroll
      for (int j = 0; j < kRadix; ++j) v[j] = first[at(j)];
      if constexpr (kFirst) change(v, base);
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
      for (int j = 0; j < kRadix; ++j) first[at(j)] = v[j];
    };
    if constexpr (kFirst) {
      const int beyond = base % 16;
      if (beyond == 0) {
        run([](int j) { return j; });
      } else {
        run([&](int j) { return j + ((beyond + j) >> 4); });
      }
    } else {
      const int step = place(1 << log);
      run([&](int j) { return j * step; });
    }
  }
  __syncthreads();
}

constexpr int kRowThreads = 512;
constexpr int kTogether = 2;  // packs of a row that a thread loads before it needs one
constexpr int kIndices = 6;   // of a thread, which it holds for all rows

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

// Unscaled Hadamard transform of what `change` makes of row[offset, offset + k), k a power of two.
template <class Change>
__device__ inline void hadamard(float* row, int offset, int k, Change change) {
  int log = 0;
  const auto stages = [&]<int kStages>() {
    if (log == 0) {
      butterflies<kStages, true>(row, offset, k, 0, change);
    } else {
      butterflies<kStages, false>(row, offset, k, log, change);
    }
  };
  for (; 16 << log <= k; log += 4) stages.template operator()<4>();
  switch (k >> log) {
    case 2:
      stages.template operator()<1>();
      break;
    case 4:
      stages.template operator()<2>();
      break;
    case 8:
      stages.template operator()<3>();
      break;
  }
}

// Sizes and factors that both directions use beside the plan.
struct Shape {
  int n, k;
  float half_scale;  // 1 / sqrt(k)
  float out_scale;   // sqrt(n / r)
  bool aligned;      // rows may be read (forward) or written (transpose) in packs
};

// The work between the two transforms of rows of a length that is no power of two: elements below k
// come from (forward) or go to (transpose) the first transform, and are scaled for it; those from
// `rest` on get a second sign, by the bits from n on.
struct Between {
  const uint32_t* signs;
  int n, k, rest;
  float scale;
  // Element i's sign is bit 31 of word << (31 - j), i = first + j, j < 16.
  __device__ uint32_t word(int first) const {
    const int bit = n + max(first - rest, 0), last = n + k - 1;
    const uint32_t low = signs[min(bit, last) / 32], high = signs[min(bit + 16, last) / 32];
    const uint32_t both = __funnelshift_r(low, high, bit % 32);
    return first < rest ? both << min(rest - first, 31) : both;
  }
  template <int V>
  __device__ void apply(float (&v)[V], int first, int below) const {
    const uint32_t mask = word(first);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int i = first + j;
      v[j] = signed_by(mask, j, i >= rest && i < below ? v[j] * scale : v[j]);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kRowThreads, 2) forward(Srht a, Shape s) {
  constexpr int V = kPack<T>;
  float* row = shared_floats();
  const Indices indices(a.plan);
  const int rest = s.n - s.k;
  for (int64_t t = blockIdx.x; t < a.rows; t += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + t * a.x_stride;
    const int stride = static_cast<int>(blockDim.x) * V;
    for (int first = threadIdx.x * V; first < s.n; first += kTogether * stride) {
      Raw<T, V> packs[kTogether];
      uint32_t words[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int i = first + k * stride;
        if (i >= s.n) break;
        packs[k] = load_raw<V>(x + i, s.n - i, s.aligned);
        words[k] = a.plan.signs[i / 32] >> i % 32;  // a pack does not cross words
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int i = first + k * stride;
        float v[V];
        unpack(v, packs[k]);
#pragma unroll
        for (int j = 0; j < V; ++j) {
          if (i + j < s.n) row[place(i + j)] = signed_by(words[k], j, v[j]);
        }
      }
    }
    __syncthreads();
    hadamard(row, 0, s.k, [](auto&, int) {});
    if (rest > 0) {
      const Between between{a.plan.signs, s.n, s.k, rest, s.half_scale};
      hadamard(row, rest, s.k, [&](auto& v, int i) { between.apply(v, i, s.k); });
    }
    T* z = static_cast<T*>(a.z) + t * a.plan.r;
    indices.each(a.plan,
                 [&](int j, int i) { store(z[j], row[place(i)] * s.half_scale * s.out_scale); });
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
    const Between between{a.plan.signs, s.n, s.k, rest, s.half_scale};
    if (rest > 0) {
      hadamard(row, rest, s.k, [](auto&, int) {});
      hadamard(row, 0, s.k, [&](auto& v, int i) { between.apply(v, i, s.n); });
    } else {
      hadamard(row, 0, s.k, [](auto&, int) {});
    }
    float* x = a.x + t * s.n;
    for (int i = threadIdx.x * V; i < s.n; i += blockDim.x * V) {
      float v[V];
      uint32_t word = a.plan.signs[i / 32] >> i % 32;
      if (i + V > s.k && rest > 0) word ^= between.word(i) & (i < s.k ? ~0u << (s.k - i) : ~0u);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (i + j >= s.n) break;
        v[j] = signed_by(word, j, row[place(i + j)] * s.half_scale);
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
