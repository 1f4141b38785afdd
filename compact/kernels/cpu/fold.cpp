// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>

#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/lanes8.h"

namespace compact::kernels::cpu {
namespace {

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

void fold(const Fold& a, const Launch& launch) {
  if (a.count == 0) return;
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
