// SPDX-License-Identifier: Apache-2.0
// Cross-entropy from logits: one block per row, whose second reading comes from the cache.
#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels::cuda {
namespace {

inline constexpr int kRowThreads = 512;

// The value subtracted before exp: 0 where all values are minus infinity.
__device__ inline float base_of(float largest) {
  return largest == Max::kIdentity ? 0.0f : largest;
}

// exp to a few units in the last place, 0 for results that are not normal: for sums whose largest
// term is 1.
__device__ inline float quick_exp(float x) {
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
#else
  return expf(x);
#endif
}

// The reduction of x by halves.
template <class Op, int V>
__device__ inline float halved(const float (&x)[V]) {
  if constexpr (V == 1) {
    return x[0];
  } else {
    float half[V / 2];
#pragma unroll
    for (int j = 0; j < V / 2; ++j) half[j] = Op::of(x[j], x[j + V / 2]);
    return halved<Op>(half);
  }
}

// The largest of some values, and the sum of exp(x - it).
struct Exps {
  float largest = Max::kIdentity, sum = 0;

  template <int V>
  __device__ void take(float (&x)[V]) {
    const float now = Max::of(largest, halved<Max>(x)), base = base_of(now);
#pragma unroll
    for (int j = 0; j < V; ++j) x[j] = quick_exp(x[j] - base);
    sum = sum * quick_exp(largest - base) + halved<Sum>(x);
    largest = now;
  }
};

template <class T, bool kAligned>
__global__ void __launch_bounds__(kRowThreads) forward(CrossEntropy a) {
  constexpr int V = kPack<T>;
  constexpr int kHeld = 2;  // packs that a thread loads at a time
  const int64_t stride = int64_t{blockDim.x} * V;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* logits = static_cast<const T*>(a.logits) + row * a.vocabulary;
    Exps exps;
    int64_t i = threadIdx.x * V;
    for (; i + (kHeld - 1) * stride + V <= a.vocabulary; i += kHeld * stride) {
      Raw<T, V> packs[kHeld];
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        packs[k] = load_raw<V>(logits + i + k * stride, V, kAligned);
      }
      float x[kHeld * V];
#pragma unroll
      for (int k = 0; k < kHeld; ++k) unpack(x + k * V, packs[k]);
      exps.take(x);
    }
    for (; i < a.vocabulary; i += stride) {
      float x[V];
      load_pack(x, logits + i, a.vocabulary - i, kAligned);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (i + j >= a.vocabulary) x[j] = Max::kIdentity;
      }
      exps.take(x);
    }
    const float top = block_reduce<Max>(exps.largest);
    const float sum = block_reduce<Sum>(exps.sum * quick_exp(exps.largest - base_of(top)));
    // A row without a finite value gets NaN.
    const float lse = top == Max::kIdentity ? nanf("") : top + logf(sum);
    if (threadIdx.x == 0) {
      const int64_t target = a.targets[row];
      a.lse[row] = lse;
      a.loss[row] = target == kIgnoreIndex           ? 0.0f
                    : is_class(target, a.vocabulary) ? lse - load(logits[target])
                                                     : nanf("");
    }
    if (a.log_probs) {
      float* log_probs = a.log_probs + row * a.vocabulary;
      for (int64_t i = threadIdx.x * V; i < a.vocabulary; i += blockDim.x * V) {
        float x[V];
        load_pack(x, logits + i, a.vocabulary - i, kAligned);
#pragma unroll
        for (int j = 0; j < V; ++j) x[j] -= lse;
        store_pack(log_probs + i, x, a.vocabulary - i, kAligned);
      }
    }
  }
}

template <class T>
__global__ void backward(CrossEntropyBackward a, bool aligned) {
  constexpr int V = kPack<T>;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t at = row * a.vocabulary, target = a.targets[row];
    const float lse = a.logits ? a.lse[row] : 0.0f;
    const bool valid = is_class(target, a.vocabulary);
    T* grad = static_cast<T*>(a.grad) + at;
    for (int64_t i = threadIdx.x * V; i < a.vocabulary; i += blockDim.x * V) {
      float p[V] = {};
      if (target != kIgnoreIndex) {
        if (a.logits) {
          load_pack(p, static_cast<const T*>(a.logits) + at + i, a.vocabulary - i, aligned);
        } else {
          load_pack(p, a.log_probs + at + i, a.vocabulary - i, aligned);
        }
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const float log_prob = a.logits ? p[j] - lse : p[j];
          p[j] = valid ? (expf(log_prob) - (i + j == target ? 1.0f : 0.0f)) * a.scale : nanf("");
        }
      }
      store_pack(grad + i, p, a.vocabulary - i, aligned);
    }
  }
}

}  // namespace

void cross_entropy(const CrossEntropy& a, const Launch& launch) {
  if (a.rows == 0 || a.vocabulary == 0) return;
  with_type(a.type, [&]<class T>() {
    const bool aligned = rows_aligned(static_cast<const T*>(a.logits), a.vocabulary) &&
                         rows_aligned(a.log_probs, a.vocabulary);
    const int threads = threads_for(a.vocabulary / kPack<T>, kRowThreads);
    start("cross_entropy", launch, {blocks_for(a.rows), threads},
          aligned ? forward<T, true> : forward<T, false>, a);
  });
}

void cross_entropy_backward(const CrossEntropyBackward& a, const Launch& launch) {
  if (a.rows == 0 || a.vocabulary == 0) return;
  with_type(a.type, [&]<class T>() {
    const bool aligned = rows_aligned(static_cast<const T*>(a.logits), a.vocabulary) &&
                         rows_aligned(a.log_probs, a.vocabulary) &&
                         rows_aligned(static_cast<const T*>(a.grad), a.vocabulary);
    const int threads = threads_for(a.vocabulary / kPack<T>, kRowThreads);
    start("cross_entropy_backward", launch, {blocks_for(a.rows), threads}, backward<T>, a, aligned);
  });
}

}  // namespace compact::kernels::cuda
