// SPDX-License-Identifier: Apache-2.0
// AdamW and the fold of a carrier: element-wise, a warp takes a tile.
#include <cmath>
#include <vector>

#include "compact/kernels/cuda/cuda.cuh"
#include "compact/kernels/cuda/tiles.cuh"

namespace compact::kernels::cuda {
namespace {

// Random numbers have 16 bits. Where all values are at most the largest bf16 in size, their sums
// with them are finite, and one test serves a pack.
template <class T, int V>
__device__ inline void store_pack_stochastic(T* to, const float (&from)[V],
                                             const uint32_t (&random)[V], int64_t left,
                                             bool aligned) {
  if constexpr (sizeof(T) == sizeof(float)) {
    store_pack(to, from, left, aligned);
  } else {
    bool plain = aligned && left >= V;
#pragma unroll
    for (int i = 0; i < V; ++i) plain &= fabsf(from[i]) <= 0x1.fep127f;
    if (plain) {
      Raw<T, V> pairs;
#pragma unroll
      for (int i = 0; i < V; i += 2) {
        pairs.v[i / 2] =
            __byte_perm(bits_of(from[i]) + random[i], bits_of(from[i + 1]) + random[i + 1], 0x7632);
      }
      *reinterpret_cast<Words<T, V>*>(to) = __builtin_bit_cast(Words<T, V>, pairs);
      return;
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (i < left) store_stochastic(to[i], from[i], random[i]);
    }
  }
}

// Tensors that one launch steps, and what all of them share.
struct Steps {
  void *param[kAdamWTogether], *m[kAdamWTogether], *v[kAdamWTogether];
  float* master[kAdamWTogether];
  const void* grad[kAdamWTogether];
  int64_t count[kAdamWTogether];
  unsigned end[kAdamWTogether];                 // shares of a block up to and with this tensor
  const AdamWNumbers* numbers[kAdamWTogether];  // or the next three say them
  uint64_t key[kAdamWTogether];
  float decay[kAdamWTogether], step[kAdamWTogether];  // decay: with numbers a learning rate less
  uint64_t aligned;                                   // bit i: all of tensor i
  const float *grad_scale, *guard;
  float beta2, rest1, rest2, root, eps;
  int tensors;
};
static_assert(sizeof(Steps) <= 4096 && kAdamWTogether <= 64);
constexpr int kStepThreads = 128;                     // of a block, so that registers are used up
constexpr int kShare = kStepThreads / kWarp * kTile;  // elements: a warp takes a tile

// The first tensor whose end is beyond `share`.
__device__ inline int tensor_of(const Steps& a, unsigned share) {
  int low = 0, high = a.tensors - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (share < a.end[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The numbers that the step of tensor i needs.
struct StepNumbers {
  uint64_t key;
  float decay, step, root;
  __device__ StepNumbers(const Steps& a, int i)
      : key(a.key[i]), decay(a.decay[i]), step(a.step[i]), root(a.root) {
    if (const AdamWNumbers* now = a.numbers[i]) {
      key = now->key;
      decay *= now->lr;
      step = now->lr / now->bias1;
      root = 1 / sqrtf(now->bias2);
    }
  }
};

// Neighbouring parts of tensor i's tile, the first of which begins at element `at`; kWhole: all are
// there and aligned. `weights` are stepped, and copied to `rounded` if that is not null. All loads
// come before what needs them.
template <int kCount, bool kWhole, class G, class S, class W, class P>
__device__ inline void adamw_parts(const Steps& a, int i, int64_t at, float scale, W* weights,
                                   P* rounded) {
  const auto left = [&](int k) { return kWhole ? kPart : a.count[i] - at - part_at(k); };
  const bool aligned = kWhole || (a.aligned >> i & 1);
  S* m_at = static_cast<S*>(a.m[i]) + at;
  S* v_at = static_cast<S*>(a.v[i]) + at;
  Raw<W, kPart> ws[kCount];
  Raw<G, kPart> gs[kCount];
  Raw<S, kPart> ms[kCount], vs[kCount];
  const auto read = [&]<class T>(Raw<T, kPart>(&to)[kCount], const T* from) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      to[k] = load_raw<kPart>(from + part_at(k), left(k), aligned);
    }
  };
  read(ws, weights + at);
  read(gs, static_cast<const G*>(a.grad[i]) + at);
  read(ms, m_at);
  read(vs, v_at);
  const StepNumbers now(a, i);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int part = part_at(k);
    const Random4 random = philox(now.key, static_cast<uint64_t>(at + part) / 4);
    float p[kPart], g[kPart], m[kPart], v[kPart];
    unpack(p, ws[k]);
    unpack(g, gs[k]);
    unpack(m, ms[k]);
    unpack(v, vs[k]);
    uint32_t p_bits[kPart], m_bits[kPart], v_bits[kPart];
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
      const uint32_t w = random.v[j];
      p_bits[j] = w & 0xffffu;
      m_bits[j] = w >> 16;
      v_bits[j] = w * kThirdHalf >> 16;
      const float grad = g[j] * scale;
      p[j] -= now.decay * p[j];
      m[j] += a.rest1 * (grad - m[j]);
      v[j] = a.beta2 * v[j] + a.rest2 * (grad * grad);
      p[j] -= now.step * m[j] / (sqrtf(v[j]) * now.root + a.eps);
    }
    store_pack_stochastic(m_at + part, m, m_bits, left(k), aligned);
    store_pack_stochastic(v_at + part, v, v_bits, left(k), aligned);
    store_pack_stochastic(weights + at + part, p, p_bits, left(k), aligned);
    if (rounded) store_pack(rounded + at + part, p, left(k), aligned);
  }
}

template <class P, class G, class S>
__global__ void __launch_bounds__(kStepThreads, blocks_held(0, 4)) adamw_steps(Steps a) {
  if (held_back(a.guard)) return;
  const float scale = a.grad_scale ? *a.grad_scale : 1.0f;
  for (unsigned share = blockIdx.x; share < a.end[a.tensors - 1]; share += gridDim.x) {
    const int i = tensor_of(a, share);
    const unsigned first = share - (i > 0 ? a.end[i - 1] : 0);
    const int64_t at = int64_t{first} * kShare + threadIdx.x / kWarp * kTile;
    const auto step = [&](auto* weights, P* rounded) {
      if (a.count[i] - at >= kTile && (a.aligned >> i & 1)) {
        adamw_parts<kParts, true, G, S>(a, i, at, scale, weights, rounded);
        return;
      }
#pragma unroll 1
      for (int64_t part = at; part < at + kTile && part < a.count[i]; part += kPartTile) {
        adamw_parts<1, false, G, S>(a, i, part, scale, weights, rounded);
      }
    };
    P* param = static_cast<P*>(a.param[i]);
    if (a.master[i]) {
      step(a.master[i], param);
    } else {
      step(param, static_cast<P*>(nullptr));
    }
  }
}

// Where the tensor's first element is the first of a Philox call: a warp takes a tile.
template <class T>
__global__ void fold_tiles(Fold a, bool aligned) {
  if (held_back(a.guard)) return;
  for_warps((a.count + kTile - 1) / kTile, [&](int64_t tile) {
    const int64_t at = tile * kTile, left = a.count - at;
    T* out = static_cast<T*>(a.w) + at;
    float w[kParts][kPart], d[kParts][kPart];
    if (a.master) {
      load_tile(w, a.master + at, left, aligned);
    } else {
      load_tile(w, out, left, aligned);
    }
    load_tile(d, a.d + at, left, aligned);
#pragma unroll
    for (int i = 0; i < kParts * kPart; ++i) {
      float& x = w[i / kPart][i % kPart];
      x = a.decay * x + a.alpha * d[i / kPart][i % kPart];
    }
    if (a.master) {
      store_tile(a.master + at, w, left, aligned);
      store_tile(out, w, left, aligned);
      return;
    }
    uint32_t bits[kParts][kPart];
    tile_bits(bits, a.key, a.offset / 8 + static_cast<uint64_t>(at / 8));
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      store_pack_stochastic(out + part_at(p), w[p], bits[p], left - part_at(p), aligned);
    }
  });
}

// Anywhere else: thread t takes the elements with (offset + i) / 8 == offset / 8 + t.
template <class T>
__global__ void fold_groups(Fold a, int64_t groups) {
  if (held_back(a.guard)) return;
  const int64_t lead = static_cast<int64_t>(a.offset % 8);
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; t < groups; t += stride) {
    const Random4 random = philox(a.key, a.offset / 8 + static_cast<uint64_t>(t));
    const int64_t at = t * 8 - lead;  // the first group begins before the tensor
    T* out = static_cast<T*>(a.w);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int64_t i = at + j;
      if (i < 0 || i >= a.count) continue;
      const float w = a.master ? a.master[i] : load(out[i]);
      const float sum = a.decay * w + a.alpha * a.d[i];
      if (a.master) {
        a.master[i] = sum;
        store(out[i], sum);
      } else {
        store_stochastic(out[i], sum, j % 2 ? random.v[j / 2] >> 16 : random.v[j / 2] & 0xffffu);
      }
    }
  }
}

// Steps without tensors yet, with the settings that they will share with `a`.
Steps begun(const AdamW& a) {
  Steps s;
  s.aligned = 0;
  s.grad_scale = a.grad_scale;
  s.guard = a.guard;
  s.beta2 = a.beta2;
  s.rest1 = 1 - a.beta1;
  s.rest2 = 1 - a.beta2;
  s.root = 1 / std::sqrt(a.bias2);
  s.eps = a.eps;
  s.tensors = 0;
  return s;
}

bool starts_aligned(const void* p) { return rows_aligned(static_cast<const char*>(p), 0); }

void add(Steps& s, const AdamW& a) {
  const int i = s.tensors++;
  s.param[i] = a.param;
  s.m[i] = a.m;
  s.v[i] = a.v;
  s.master[i] = a.master;
  s.grad[i] = a.grad;
  s.count[i] = a.count;
  s.end[i] = (i > 0 ? s.end[i - 1] : 0) + static_cast<unsigned>((a.count + kShare - 1) / kShare);
  s.key[i] = a.key;
  s.numbers[i] = a.numbers;
  s.decay[i] = a.numbers ? a.weight_decay : a.lr * a.weight_decay;
  s.step[i] = a.lr / a.bias1;
  const bool aligned = starts_aligned(a.param) && starts_aligned(a.m) && starts_aligned(a.v) &&
                       starts_aligned(a.master) && starts_aligned(a.grad);
  s.aligned |= (aligned ? uint64_t{1} : 0) << i;
}

}  // namespace

void adamw(const AdamW& a, const Launch& launch) { adamw_all({&a, 1}, launch); }

void adamw_all(const AdamWList& list, const Launch& launch) {
  Steps steps{};
  const AdamW* like = nullptr;  // the first of those in `steps`
  const auto run = [&] {
    if (!like) return;
    with_types(like->type, like->grad_type, [&]<class P, class G>() {
      with_type(like->state_type, [&]<class S>() {
        start("adamw", launch, {blocks_for(steps.end[steps.tensors - 1]), kStepThreads},
              adamw_steps<P, G, S>, steps);
      });
    });
    like = nullptr;
  };
  std::vector<bool> done(static_cast<size_t>(list.count));
  for (int64_t first = 0; first < list.count; ++first) {
    for (int64_t i = first; i < list.count; ++i) {
      const AdamW& a = list.each[i];
      if (done[i] || (like && !steps_together(*like, a))) continue;
      done[i] = true;
      if (a.count == 0) continue;
      if (!like) {
        steps = begun(a);
        like = &a;
      }
      add(steps, a);
      if (steps.tensors == kAdamWTogether) break;
    }
    run();
  }
}

void fold(const Fold& a, const Launch& launch) {
  if (a.count == 0) return;
  const int64_t lead = static_cast<int64_t>(a.offset % 8);
  with_type(a.type, [&]<class T>() {
    if (lead == 0) {
      const bool aligned = rows_aligned(static_cast<const T*>(a.w), 0) &&
                           rows_aligned(a.master, 0) && rows_aligned(a.d, 0);
      start("fold", launch, {blocks_for(a.count, kTile * kThreads / kWarp), kThreads},
            fold_tiles<T>, a, aligned);
    } else {
      const int64_t groups = (a.count + lead + 7) / 8;
      start("fold", launch, {blocks_for(groups, kThreads), kThreads}, fold_groups<T>, a, groups);
    }
  });
}

}  // namespace compact::kernels::cuda
