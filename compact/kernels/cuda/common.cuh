// SPDX-License-Identifier: Apache-2.0
// The common part of the CUDA kernels: packs of elements read with one 16-byte load, reductions in
// a fixed order, and launches that report their errors.
//
// A row is walked in packs of kPack<T> neighbours: pack t, t + threads, ... belongs to thread t.
// Unaligned rows take the same walk with single loads, so sums do not depend on alignment.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "compact/base/check.h"
#include "compact/kernels/bfloat16.h"
#include "compact/kernels/dispatch.h"
#include "compact/kernels/kernels.h"

namespace compact::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kThreads = 256;
#if defined(__CUDACC__)
inline constexpr int64_t kMaxBlocks = 1 << 20;  // grids stride over what is left
#else
inline constexpr int64_t kMaxBlocks = 3;  // so small that tests cover it
#endif

// Blocks of a kernel that walk over rows and hold in registers what all rows share.
inline constexpr int64_t kRowBlocks = 2048;

// Elements of a 16-byte pack.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Words {
  T v[kCount];
};

// Blocks of a kernel that a multiprocessor is to hold; on sm_100 so many that ptxas spills nothing.
constexpr int blocks_held(int elsewhere, int on_sm_100) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
  return on_sm_100;
#else
  return elsewhere;
#endif
}

// V elements as they lie in memory: in words of 32 bits, since nvcc takes a pack of bf16 apart as
// soon as it is loaded, and so waits for each load before the next one.
template <class T, int V>
struct alignas(V * sizeof(T) < 16 ? (V * sizeof(T) + 3) / 4 * 4 : 16) Raw {
  static constexpr int kEach = 4 / static_cast<int>(sizeof(T));  // elements of a word
  uint32_t v[(V + kEach - 1) / kEach];
};
template <class T, int V>
inline constexpr bool kWhole = V * sizeof(T) % 4 == 0;
template <class T, int V>
__device__ inline void unpack(float* to, const Raw<T, V>& raw) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const uint32_t word = raw.v[i / Raw<T, V>::kEach];
    to[i] = float_of(sizeof(T) == 4 ? word : i % 2 ? word & 0xffff0000u : word << 16);
  }
}

// The elements [0, V) of `from`, of which `left` exist (the others read as 0).
template <int V, class T>
__device__ inline Raw<T, V> load_raw(const T* from, int64_t left, bool aligned) {
  constexpr int kStep = V < kPack<T> ? V : kPack<T>, kEach = Raw<T, V>::kEach;
  Raw<T, V> raw = {};
  if (kWhole<T, V> && aligned && left >= V) {
#pragma unroll
    for (int i = 0; i < V; i += kStep) {
      const auto some = *reinterpret_cast<const Raw<T, kStep>*>(from + i);
#pragma unroll
      for (int j = 0; j < kStep / kEach; ++j) raw.v[i / kEach + j] = some.v[j];
    }
    return raw;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i >= left) continue;
    if constexpr (kEach == 2) {
      raw.v[i / 2] |= uint32_t{from[i].bits} << i % 2 * 16;
    } else {
      raw.v[i] = bits_of(from[i]);
    }
  }
  return raw;
}

// Two values as a word of T, or one.
__device__ inline uint32_t word_of(float, const float* x) { return bits_of(*x); }
__device__ inline uint32_t word_of(BFloat16, const float* x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t word;  // rounded as `store` does
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(x[1]), "f"(x[0]));
  return word;
#else
  BFloat16 low, high;
  store(low, x[0]);
  store(high, x[1]);
  return uint32_t{high.bits} << 16 | low.bits;
#endif
}

// The elements [0, V) of `from`, of which `left` exist (the others read as 0).
template <int V, class T>
__device__ inline void load_pack(float (&to)[V], const T* from, int64_t left, bool aligned) {
  constexpr int kStep = V < kPack<T> ? V : kPack<T>;
  if (kWhole<T, V> && aligned && left >= V) {
#pragma unroll
    for (int i = 0; i < V; i += kStep) {
      const auto words = *reinterpret_cast<const Raw<T, kStep>*>(from + i);
      unpack(to + i, words);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = i < left ? load(from[i]) : 0.0f;
}

template <int V, class T>
__device__ inline void store_pack(T* to, const float (&from)[V], int64_t left, bool aligned) {
  constexpr int kStep = V < kPack<T> ? V : kPack<T>, kEach = Raw<T, kStep>::kEach;
  if (kWhole<T, V> && aligned && left >= V) {
#pragma unroll
    for (int i = 0; i < V; i += kStep) {
      Raw<T, kStep> words;
#pragma unroll
      for (int j = 0; j < kStep; j += kEach) words.v[j / kEach] = word_of(T{}, from + i + j);
      *reinterpret_cast<Raw<T, kStep>*>(to + i) = words;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < left) store(to[i], from[i]);
  }
}

// The same without conversion to f32.
template <int V, class T>
__device__ inline Words<T, V> load_words(const T* from, int64_t left, bool aligned) {
  constexpr int kStep = V < kPack<T> ? V : kPack<T>;
  Words<T, V> words = {};
  if (aligned && left >= V) {
#pragma unroll
    for (int i = 0; i < V; i += kStep) {
      *reinterpret_cast<Words<T, kStep>*>(words.v + i) =
          *reinterpret_cast<const Words<T, kStep>*>(from + i);
    }
    return words;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < left) words.v[i] = from[i];
  }
  return words;
}
template <int V, class T>
__device__ inline void store_words(T* to, const Words<T, V>& words, int64_t left, bool aligned) {
  static_assert(V <= kPack<T>);
  if (aligned && left >= V) {
    *reinterpret_cast<Words<T, V>*>(to) = words;
    return;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < left) to[i] = words.v[i];
  }
}

// Whether rows of `stride` elements of T from `p` on all start at 16 bytes. Null counts as aligned.
template <class T>
bool rows_aligned(const T* p, int64_t stride) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % kPack<T> == 0;
}

struct Sum {
  static constexpr float kIdentity = 0.0f;
  __device__ static float of(float a, float b) { return a + b; }
};
struct Max {  // ignores NaN
  static constexpr float kIdentity = -__builtin_huge_valf();
  __device__ static float of(float a, float b) { return fmaxf(a, b); }
};

// The reduction over a block of at most 1024 threads, the same value in each. Fixed order: within
// a warp by halves, then over the warps by halves.
template <class Op>
__device__ inline float block_reduce(float x) {
  __shared__ float partial[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, step));
  }
  if (warps == 1) return x;
  __syncthreads();  // an earlier reduction may still be read
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  x = lane < warps ? partial[lane] : Op::kIdentity;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, step));
  }
  return x;
}

// Threads for a row of `packs` packs: a power of two from one warp to `most`.
inline int threads_for(int64_t packs, int most = kThreads) {
  int threads = kWarp;
  while (threads < most && threads < packs) threads *= 2;
  return threads;
}
inline unsigned blocks_for(int64_t work, int64_t per_block = 1) {
  return static_cast<unsigned>(std::min((work + per_block - 1) / per_block, kMaxBlocks));
}

// Calls body(i) for i in [0, count), one warp an i; all lanes of a warp get the same.
template <class Body>
__device__ inline void for_warps(int64_t count, Body body) {
  const int64_t stride = int64_t{gridDim.x} * (blockDim.x / kWarp);
  int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  for (; i < count; i += stride) body(i);
}

inline cudaStream_t stream_of(const Launch& launch) {
  return static_cast<cudaStream_t>(launch.stream);
}

// Throws std::runtime_error where the call or the launch before it failed.
inline void check(cudaError_t status, const char* kernel) {
  if (status != cudaSuccess) {
    throw std::runtime_error(cat("[cuda] ", kernel, ": ", cudaGetErrorString(status)));
  }
}

// The threads of a launch, and the bytes of shared memory that a block asks for.
struct Grid {
  dim3 blocks, threads;
  size_t shared = 0;
};

// Launches on the caller's stream; throws as `check`. Without nvcc: see tests/cuda_on_cpu.
template <class... P>
void start(const char* name, const Launch& launch, const Grid& grid, void (*kernel)(P...),
           std::type_identity_t<P>... args) {
#if defined(__CUDACC__)
  kernel<<<grid.blocks, grid.threads, grid.shared, stream_of(launch)>>>(args...);
#else
  emulated_launch(name, grid.blocks, grid.threads, grid.shared, kernel, args...);
#endif
  check(cudaGetLastError(), name);
}

// The shared memory that the launch asked for.
__device__ inline float* shared_floats() {
#if defined(__CUDACC__)
  extern __shared__ float floats[];
  return floats;
#else
  return static_cast<float*>(emulated::dynamic_shared());
#endif
}

}  // namespace compact::kernels::cuda
