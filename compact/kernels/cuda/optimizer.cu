// SPDX-License-Identifier: Apache-2.0
// AdamW and the fold of a carrier: element-wise, a thread takes the elements of one Philox call.
#include <cmath>

#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels::cuda {
namespace {

template <class T, int V>
__device__ inline void store_pack_stochastic(T* to, const float (&from)[V],
                                             const uint32_t (&random)[V], int64_t left,
                                             bool aligned) {
  if (aligned && left >= V) {
    constexpr int kStep = V < kPack<T> ? V : kPack<T>;
#pragma unroll
    for (int i = 0; i < V; i += kStep) {
      Words<T, kStep> words;
#pragma unroll
      for (int j = 0; j < kStep; ++j) store_stochastic(words.v[j], from[i + j], random[i + j]);
      *reinterpret_cast<Words<T, kStep>*>(to + i) = words;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < left) store_stochastic(to[i], from[i], random[i]);
  }
}

// The scalars of a step, each made once.
struct Factors {
  float decay, step, rest1, rest2, root;
};

template <class P, class G, class S>
__global__ void adamw_step(AdamW a, Factors f, bool aligned) {
  const float scale = a.grad_scale ? *a.grad_scale : 1.0f;
  const int64_t groups = (a.count + 3) / 4;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; t < groups; t += stride) {
    const int64_t at = t * 4, left = a.count - at;
    P* param = static_cast<P*>(a.param) + at;
    S* m_at = static_cast<S*>(a.m) + at;
    S* v_at = static_cast<S*>(a.v) + at;
    float p[4], g[4], m[4], v[4];
    if (a.master) {
      load_pack(p, a.master + at, left, aligned);
    } else {
      load_pack(p, param, left, aligned);
    }
    load_pack(g, static_cast<const G*>(a.grad) + at, left, aligned);
    load_pack(m, m_at, left, aligned);
    load_pack(v, v_at, left, aligned);
    const Random4 random = philox(a.key, static_cast<uint64_t>(t));
    uint32_t p_bits[4], m_bits[4], v_bits[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t w = random.v[j];
      p_bits[j] = w & 0xffffu;
      m_bits[j] = w >> 16;
      v_bits[j] = w * kThirdHalf >> 16;
      const float grad = g[j] * scale;
      p[j] -= f.decay * p[j];
      m[j] += f.rest1 * (grad - m[j]);
      v[j] = a.beta2 * v[j] + f.rest2 * (grad * grad);
      p[j] -= f.step * m[j] / (sqrtf(v[j]) * f.root + a.eps);
    }
    store_pack_stochastic(m_at, m, m_bits, left, aligned);
    store_pack_stochastic(v_at, v, v_bits, left, aligned);
    if (a.master) {
      store_pack(a.master + at, p, left, aligned);
      store_pack(param, p, left, aligned);
    } else {
      store_pack_stochastic(param, p, p_bits, left, aligned);
    }
  }
}

// Group t holds the elements with (offset + i) / 8 == offset / 8 + t.
template <class T>
__global__ void fold_groups(Fold a, int64_t groups, bool aligned) {
  const int64_t lead = static_cast<int64_t>(a.offset % 8);
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; t < groups; t += stride) {
    const Random4 random = philox(a.key, a.offset / 8 + static_cast<uint64_t>(t));
    uint32_t bits[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      bits[j] = j % 2 ? random.v[j / 2] >> 16 : random.v[j / 2] & 0xffffu;
    }
    const int64_t at = t * 8 - lead, left = a.count - at;
    T* out = static_cast<T*>(a.w) + at;
    if (at < 0) {  // the first group begins before the tensor
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (at + j < 0 || j >= left) continue;
        const float w = a.master ? a.master[at + j] : load(out[j]);
        const float sum = a.decay * w + a.alpha * a.d[at + j];
        if (a.master) {
          a.master[at + j] = sum;
          store(out[j], sum);
        } else {
          store_stochastic(out[j], sum, bits[j]);
        }
      }
      continue;
    }
    float w[8], d[8];
    if (a.master) {
      load_pack(w, a.master + at, left, aligned);
    } else {
      load_pack(w, out, left, aligned);
    }
    load_pack(d, a.d + at, left, aligned);
#pragma unroll
    for (int j = 0; j < 8; ++j) w[j] = a.decay * w[j] + a.alpha * d[j];
    if (a.master) {
      store_pack(a.master + at, w, left, aligned);
      store_pack(out, w, left, aligned);
    } else {
      store_pack_stochastic(out, w, bits, left, aligned);
    }
  }
}

}  // namespace

void adamw(const AdamW& a, const Launch& launch) {
  if (a.count == 0) return;
  const Factors f = {.decay = a.lr * a.weight_decay,
                     .step = a.lr / a.bias1,
                     .rest1 = 1 - a.beta1,
                     .rest2 = 1 - a.beta2,
                     .root = 1 / std::sqrt(a.bias2)};
  const unsigned blocks = blocks_for(a.count, 4 * kThreads);
  with_type(a.type, [&]<class P>() {
    with_type(a.grad_type, [&]<class G>() {
      with_type(a.state_type, [&]<class S>() {
        const bool aligned = rows_aligned(static_cast<const P*>(a.param), 0) &&
                             rows_aligned(a.master, 0) &&
                             rows_aligned(static_cast<const G*>(a.grad), 0) &&
                             rows_aligned(static_cast<const S*>(a.m), 0) &&
                             rows_aligned(static_cast<const S*>(a.v), 0);
        adamw_step<P, G, S><<<blocks, kThreads, 0, stream_of(launch)>>>(a, f, aligned);
      });
    });
  });
  check(cudaGetLastError(), "adamw");
}

void fold(const Fold& a, const Launch& launch) {
  if (a.count == 0) return;
  const int64_t lead = static_cast<int64_t>(a.offset % 8);
  const int64_t groups = (a.count + lead + 7) / 8;
  with_type(a.type, [&]<class T>() {
    const bool aligned = lead == 0 && rows_aligned(static_cast<const T*>(a.w), 0) &&
                         rows_aligned(a.master, 0) && rows_aligned(a.d, 0);
    fold_groups<T>
        <<<blocks_for(groups, kThreads), kThreads, 0, stream_of(launch)>>>(a, groups, aligned);
  });
  check(cudaGetLastError(), "fold");
}

}  // namespace compact::kernels::cuda
