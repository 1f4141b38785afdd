// SPDX-License-Identifier: Apache-2.0
// RMSNorm: a block walks over rows, several side by side where a warp takes one. A thread holds its
// packs of the row and of the weight, so that each is read once; rows that are too wide for that
// are read again.
#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels::cuda {
namespace {

inline constexpr int kRowThreads = 512;

// The packs of a row that belong to a thread: kPacks at the most are held, none where that is 0.
template <class T, int kPacks>
struct Row {
  static constexpr bool kHeld = kPacks > 0;
  Raw<T, kPack<T>> packs[kHeld ? kPacks : 1];

  __device__ void read(const T* row, int64_t n, bool aligned) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int64_t i = place(k);
      packs[k] = load_raw<kPack<T>>(row + (i < n ? i : 0), n - i, aligned);
    }
  }
  // Pack k as numbers, from memory where it is not held.
  __device__ void get(float (&to)[kPack<T>], const T* row, int k, int64_t n, bool aligned) const {
    if constexpr (kHeld) {
      unpack(to, packs[k]);
    } else {
      load_pack(to, row + place(k), n - place(k), aligned);
    }
  }
  __device__ static int64_t place(int k) {
    return (int64_t{k} * blockDim.x + threadIdx.x) * kPack<T>;
  }
};

// Calls body(k, i) for the thread's packs, which begin at i.
template <class T, int kPacks, class Body>
__device__ inline void for_packs(int64_t n, Body body) {
  if constexpr (kPacks > 0) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int64_t i = Row<T, kPacks>::place(k);
      if (i < n) body(k, i);
    }
  } else {
    for (int k = 0; Row<T, 0>::place(k) < n; ++k) body(k, Row<T, 0>::place(k));
  }
}

// The weight, in packs as long as those of a row of T.
template <class T, class W, int kPacks>
struct Weight {
  Words<W, kPack<T>> packs[kPacks > 0 ? kPacks : 1];

  __device__ void read(const W* weight, int64_t n, bool aligned) {
    for_packs<T, kPacks>(n, [&](int k, int64_t i) {
      if constexpr (kPacks > 0) packs[k] = load_words<kPack<T>>(weight + i, n - i, aligned);
    });
  }
  __device__ void get(float (&to)[kPack<T>], const W* weight, int k, int64_t i, int64_t n,
                      bool aligned) const {
    if constexpr (kPacks > 0) {
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) to[j] = load(packs[k].v[j]);
    } else {
      load_pack(to, weight + i, n - i, aligned);
    }
  }
};

template <class T, class W, int kPacks>
__global__ void __launch_bounds__(kRowThreads) forward(RmsNorm a, bool aligned) {
  constexpr int V = kPack<T>;
  const W* weight = static_cast<const W*>(a.weight);
  Weight<T, W, kPacks> held_weight;
  held_weight.read(weight, a.n, aligned);
  const int64_t stride = int64_t{gridDim.x} * blockDim.y;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < a.rows; row += stride) {
    const T* x = static_cast<const T*>(a.x) + row * a.n;
    T* y = static_cast<T*>(a.y) + row * a.n;
    Row<T, kPacks> held;
    held.read(x, a.n, aligned);
    float sum = 0;
    for_packs<T, kPacks>(a.n, [&](int k, int64_t) {
      float v[V];
      held.get(v, x, k, a.n, aligned);
#pragma unroll
      for (int j = 0; j < V; ++j) sum += v[j] * v[j];
    });
    const float mean = block_reduce<Sum>(sum) / static_cast<float>(a.n);
    const float rstd = 1.0f / sqrtf(mean + a.eps);
    if (threadIdx.x == 0) a.rstd[row] = rstd;
    for_packs<T, kPacks>(a.n, [&](int k, int64_t i) {
      float v[V], w[V];
      held.get(v, x, k, a.n, aligned);
      held_weight.get(w, weight, k, i, a.n, aligned);
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = v[j] * rstd * w[j];
      store_pack(y + i, v, a.n - i, aligned);
    });
  }
}

// A block walks over the rows of a part, whose sum of the weight's gradient it makes on the way; in
// memory where rows are too wide to be held.
template <class T, class W, int kPacks>
__global__ void __launch_bounds__(kRowThreads, kPacks == 1 ? 2 : 1)
    backward(RmsNormBackward a, int64_t parts, bool aligned) {
  constexpr int V = kPack<T>;
  const W* weight = static_cast<const W*>(a.weight);
  Weight<T, W, kPacks> held_weight;
  held_weight.read(weight, a.n, aligned);
  const int64_t stride = int64_t{gridDim.x} * blockDim.y;
  for (int64_t part = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; part < parts;
       part += stride) {
    float* sums = a.gweight ? a.parts + part * a.n : nullptr;
    float sum_of[kPacks > 0 ? kPacks : 1][V] = {};
    if (kPacks == 0 && sums) {
      for_packs<T, kPacks>(a.n, [&](int, int64_t i) {
        const float zero[V] = {};
        store_pack(sums + i, zero, a.n - i, aligned);
      });
    }
    const int64_t begin = part * a.rows / parts, end = (part + 1) * a.rows / parts;
    // The next row is on its way while a row is treated, where that leaves registers enough.
    constexpr bool kAhead = kPacks * V <= 8;
    Row<T, kPacks> next_x, next_gy;
    const auto fetch = [&](int64_t row) {
      if (row >= end) return;
      next_x.read(static_cast<const T*>(a.x) + row * a.n, a.n, aligned);
      next_gy.read(static_cast<const T*>(a.gy) + row * a.n, a.n, aligned);
    };
    if (kAhead) fetch(begin);
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(a.x) + row * a.n;
      const T* gy = static_cast<const T*>(a.gy) + row * a.n;
      const T* residual = a.residual ? static_cast<const T*>(a.residual) + row * a.n : nullptr;
      T* gx = static_cast<T*>(a.gx) + row * a.n;
      if (!kAhead) fetch(row);
      const Row<T, kPacks> held_x = next_x, held_gy = next_gy;
      if (kAhead) fetch(row + 1);
      const float rstd = a.rstd[row];
      float sum = 0;
      for_packs<T, kPacks>(a.n, [&](int k, int64_t i) {
        float v[V], g[V], w[V];
        held_x.get(v, x, k, a.n, aligned);
        held_gy.get(g, gy, k, a.n, aligned);
        held_weight.get(w, weight, k, i, a.n, aligned);
#pragma unroll
        for (int j = 0; j < V; ++j) sum += g[j] * w[j] * v[j];
      });
      const float dot = block_reduce<Sum>(sum);
      const float along = dot * rstd * rstd / static_cast<float>(a.n);
      for_packs<T, kPacks>(a.n, [&](int k, int64_t i) {
        float v[V], g[V], w[V], r[V];
        held_x.get(v, x, k, a.n, aligned);
        held_gy.get(g, gy, k, a.n, aligned);
        held_weight.get(w, weight, k, i, a.n, aligned);
        if constexpr (kPacks > 0) {
#pragma unroll
          for (int j = 0; j < V; ++j) sum_of[k][j] += g[j] * (v[j] * rstd);
        } else if (sums) {
          load_pack(r, sums + i, a.n - i, aligned);
#pragma unroll
          for (int j = 0; j < V; ++j) r[j] += g[j] * (v[j] * rstd);
          store_pack(sums + i, r, a.n - i, aligned);
        }
#pragma unroll
        for (int j = 0; j < V; ++j) g[j] = rstd * (g[j] * w[j] - v[j] * along);
        if (residual) {
          load_pack(r, residual + i, a.n - i, aligned);
#pragma unroll
          for (int j = 0; j < V; ++j) g[j] += r[j];
        }
        store_pack(gx + i, g, a.n - i, aligned);
      });
    }
    if constexpr (kPacks > 0) {
      if (!sums) continue;
      for_packs<T, kPacks>(
          a.n, [&](int k, int64_t i) { store_pack(sums + i, sum_of[k], a.n - i, aligned); });
    }
  }
}

inline constexpr int kSumLanes = 16;  // parts that a block adds side by side

// gweight: blocks of [kSumLanes, kWarp] threads on columns / kWarp.
template <class W>
__global__ void weight_sum(RmsNormBackward a) {
  __shared__ float lanes[kSumLanes][kWarp];
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  float sum = 0;
  if (column < a.n) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < a.parts_count; part += kSumLanes) {
      sum += a.parts[part * a.n + column];
    }
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= a.n) return;
#pragma unroll
  for (int i = 1; i < kSumLanes; ++i) sum += lanes[i][threadIdx.x];
  store(static_cast<W*>(a.gweight)[column], sum);
}

// The threads of a block: of rows that a warp takes, kWarps side by side.
inline constexpr unsigned kWarps = 8;
template <class T>
dim3 row_threads(int64_t n) {
  const auto threads =
      static_cast<unsigned>(threads_for((n + kPack<T> - 1) / kPack<T>, kRowThreads));
  return {threads, threads == kWarp ? kWarps : 1};
}
unsigned blocks_of(int64_t rows, const dim3& threads) {
  return blocks_for(std::min(rows, kRowBlocks * threads.y), threads.y);
}

// Calls f.template operator()<packs>() with how many packs of a row a thread holds.
template <class T, class F>
void with_packs(int64_t n, const dim3& threads, F&& body) {
  const int64_t packs = (n + kPack<T> - 1) / kPack<T>;
  if (packs <= threads.x) return body.template operator()<1>();
  if (packs <= 2 * threads.x) return body.template operator()<2>();
  if constexpr (kPack<T> == 4) {  // of longer packs four are more than a thread can hold
    if (packs <= 4 * threads.x) return body.template operator()<4>();
  }
  body.template operator()<0>();
}

}  // namespace

void rms_norm(const RmsNorm& a, const Launch& launch) {
  if (a.rows == 0 || a.n == 0) return;
  with_types(a.type, a.weight_type, [&]<class T, class W>() {
    const bool aligned = rows_aligned(static_cast<const T*>(a.x), a.n) &&
                         rows_aligned(static_cast<const W*>(a.weight), 0) &&
                         rows_aligned(static_cast<const T*>(a.y), a.n);
    const dim3 threads = row_threads<T>(a.n);
    with_packs<T>(a.n, threads, [&]<int kPacks>() {
      start("rms_norm", launch, {blocks_of(a.rows, threads), threads}, forward<T, W, kPacks>, a,
            aligned);
    });
  });
}

void rms_norm_backward(const RmsNormBackward& a, const Launch& launch) {
  if (a.n == 0) return;
  with_types(a.type, a.weight_type, [&]<class T, class W>() {
    const bool aligned = rows_aligned(static_cast<const T*>(a.x), a.n) &&
                         rows_aligned(static_cast<const T*>(a.gy), a.n) &&
                         rows_aligned(static_cast<const W*>(a.weight), 0) &&
                         rows_aligned(static_cast<const T*>(a.residual), a.n) &&
                         rows_aligned(static_cast<const T*>(a.gx), a.n) && rows_aligned(a.parts, 0);
    const dim3 threads = row_threads<T>(a.n);
    const int64_t parts = a.gweight ? a.parts_count : std::min(a.rows, kRowBlocks * threads.y);
    with_packs<T>(a.n, threads, [&]<int kPacks>() {
      if (parts == 0) return;
      start("rms_norm_backward", launch, {blocks_for(parts, threads.y), threads},
            backward<T, W, kPacks>, a, parts, aligned);
    });
    if (!a.gweight) return;
    const unsigned blocks = static_cast<unsigned>((a.n + kWarp - 1) / kWarp);
    start("rms_norm_backward", launch, {blocks, dim3(kWarp, kSumLanes)}, weight_sum<W>, a);
  });
}

}  // namespace compact::kernels::cuda
