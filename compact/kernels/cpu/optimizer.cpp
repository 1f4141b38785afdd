// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/lanes8.h"
#include "compact/kernels/cpu/philox_lanes.h"
#include "compact/kernels/cpu/simd.h"

namespace compact::kernels::cpu {
namespace {

struct Factors {
  float scale, decay, step, beta2, rest1, rest2, root, eps;
};

template <class P, class G, class S, class Count>
COMPACT_INLINE void adamw_lanes(const AdamW& a, const Factors& f, int64_t i, UVec w, Count count) {
  P* param = static_cast<P*>(a.param) + i;
  S* m_out = static_cast<S*>(a.m) + i;
  S* v_out = static_cast<S*>(a.v) + i;
  const Vec g = load(static_cast<const G*>(a.grad) + i, count) * f.scale;
  Vec p = a.master ? load(a.master + i, count) : load(param, count);
  Vec m = load(m_out, count), v = load(v_out, count);
  p -= f.decay * p;
  m += f.rest1 * (g - m);
  v = f.beta2 * v + f.rest2 * (g * g);
  p -= f.step * m / (sqrt(v) * f.root + f.eps);
  store_stochastic(m_out, m, w >> 16, count);
  store_stochastic(v_out, v, w * kThirdHalf >> 16, count);
  if (a.master) {
    store(a.master + i, p, count);
    store(param, p, count);
  } else {
    store_stochastic(param, p, w & 0xffffu, count);
  }
}

template <class P, class G, class S>
void adamw_range(const AdamW& a, const Factors& f, int64_t begin, int64_t end) {
  const bool random =
      std::is_same_v<S, BFloat16> || (std::is_same_v<P, BFloat16> && a.master == nullptr);
  uint32_t words[kPhiloxWords] = {};
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * kPhiloxWords;
    if (random) philox_words(a.key, static_cast<uint64_t>(block * kPhiloxCounters), words);
    for_lanes(std::min<int64_t>(kPhiloxWords, a.count - first), [&](int64_t i, auto count) {
      adamw_lanes<P, G, S>(a, f, first + i, load_raw<UVec>(words + i), count);
    });
  }
}

// Elements of one call of philox_words: two a word, low half first.
constexpr uint64_t kBlock = kPhiloxHalves;

template <class T>
void fold_block(const Fold& a, uint64_t block, bool random) {
  uint16_t bits[kBlock + kLanes] = {};
  if (random) philox_halves(a.key, block * kPhiloxCounters, bits);
  const uint64_t first = std::max(a.offset, block * kBlock);
  const uint64_t last = std::min(a.offset + static_cast<uint64_t>(a.count), (block + 1) * kBlock);
  const uint16_t* own = bits + (first - block * kBlock);
  const int64_t at = static_cast<int64_t>(first - a.offset);
  T* out = static_cast<T*>(a.w) + at;
  const float* d = a.d + at;
  float* master = a.master ? a.master + at : nullptr;
  for_lanes(static_cast<int64_t>(last - first), [&](int64_t i, auto count) {
    const Vec old = master ? load(master + i, count) : load(out + i, count);
    const Vec w = a.decay * old + a.alpha * load(d + i, count);
    if (master) {
      store(master + i, w, count);
      store(out + i, w, count);
    } else {
      store_stochastic(out + i, w, load_halves(own + i), count);
    }
  });
}

}  // namespace

void adamw(const AdamW& given, const Launch& launch) {
  const AdamW a = with_numbers(given);
  if (held_back(a.guard)) return;
  const Factors f = {
      .scale = a.grad_scale ? *a.grad_scale : 1.0f,
      .decay = a.lr * a.weight_decay,
      .step = a.lr / a.bias1,
      .beta2 = a.beta2,
      .rest1 = 1 - a.beta1,
      .rest2 = 1 - a.beta2,
      .root = 1 / std::sqrt(a.bias2),
      .eps = a.eps,
  };
  with_type(a.type, [&]<class P>() {
    with_type(a.grad_type, [&]<class G>() {
      with_type(a.state_type, [&]<class S>() {
        const int64_t blocks = (a.count + kPhiloxWords - 1) / kPhiloxWords;
        launch.parallel_for(blocks, 64, [&](int64_t begin, int64_t end) {
          adamw_range<P, G, S>(a, f, begin, end);
        });
      });
    });
  });
}

void adamw_all(const AdamWList& list, const Launch& launch) {
  for (int64_t i = 0; i < list.count; ++i) adamw(list.each[i], launch);
}

void fold(const Fold& a, const Launch& launch) {
  if (a.count == 0 || held_back(a.guard)) return;
  with_type(a.type, [&]<class T>() {
    const bool random = std::is_same_v<T, BFloat16> && a.master == nullptr;
    const uint64_t first = a.offset / kBlock;
    const uint64_t last = (a.offset + static_cast<uint64_t>(a.count) - 1) / kBlock + 1;
    launch.parallel_for(static_cast<int64_t>(last - first), 64, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        fold_block<T>(a, first + static_cast<uint64_t>(b), random);
      }
    });
  });
}

}  // namespace compact::kernels::cpu
