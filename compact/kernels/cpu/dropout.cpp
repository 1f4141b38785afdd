// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/philox_lanes.h"
#include "compact/kernels/cpu/simd.h"

namespace compact::kernels::cpu {

void dropout(const Dropout& a, const Launch& launch) {
  static_assert(std::endian::native == std::endian::little);
  constexpr int64_t kElements = 2 * kPhiloxWords;  // two to a word, low half first
  const float scale = dropout_scale(a.dropped);
  with_type(a.type, [&]<class T>() {
    const int64_t blocks = (a.count + kElements - 1) / kElements;
    launch.parallel_for(blocks, 32, [&](int64_t begin, int64_t end) {
      uint32_t words[kPhiloxWords];
      for (int64_t block = begin; block < end; ++block) {
        philox_words(a.key, static_cast<uint64_t>(block * kPhiloxCounters), words);
        const int64_t first = block * kElements;
        const T* x = static_cast<const T*>(a.x) + first;
        T* y = static_cast<T*>(a.y) + first;
        const auto* halves = reinterpret_cast<const unsigned char*>(words);
        for_lanes(std::min<int64_t>(kElements, a.count - first), [&](int64_t i, auto count) {
          const UVec random = widen(load_raw<HVec>(halves + 2 * i));
          const Vec kept = load(x + i, count) * scale;
          store(y + i, select(random < a.dropped, Vec{}, kept), count);
        });
      }
    });
  });
}

}  // namespace compact::kernels::cpu
