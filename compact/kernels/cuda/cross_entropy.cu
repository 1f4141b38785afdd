// SPDX-License-Identifier: Apache-2.0
// Cross-entropy from logits: one block per row, whose second reading comes from the cache.
#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels::cuda {
namespace {

inline constexpr int kRowThreads = 512;

// What is subtracted before exp: nothing where all values are minus infinity.
__device__ inline float base_of(float largest) {
  return largest == Max::kIdentity ? 0.0f : largest;
}

template <class T>
__global__ void forward(CrossEntropy a, bool aligned) {
  constexpr int V = kPack<T>;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* logits = static_cast<const T*>(a.logits) + row * a.vocabulary;
    // The largest so far, and the sum of exp(x - it), which is rescaled where it grows.
    float largest = Max::kIdentity, sum = 0;
    for (int64_t i = threadIdx.x * V; i < a.vocabulary; i += blockDim.x * V) {
      float x[V];
      load_pack(x, logits + i, a.vocabulary - i, aligned);
      float now = largest;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (i + j < a.vocabulary) now = Max::of(now, x[j]);
      }
      const float base = base_of(now);
      if (now > largest) sum *= expf(largest - base);
      largest = now;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (i + j < a.vocabulary) sum += expf(x[j] - base);
      }
    }
    const float top = block_reduce<Max>(largest);
    sum = block_reduce<Sum>(sum * expf(largest - base_of(top)));
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
        load_pack(x, logits + i, a.vocabulary - i, aligned);
#pragma unroll
        for (int j = 0; j < V; ++j) x[j] -= lse;
        store_pack(log_probs + i, x, a.vocabulary - i, aligned);
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
    start("cross_entropy", launch, {blocks_for(a.rows), threads}, forward<T>, a, aligned);
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
