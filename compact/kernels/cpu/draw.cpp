// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/philox_lanes.h"
#include "compact/kernels/cpu/simd.h"
#include "compact/kernels/normal.h"

namespace compact::kernels::cpu {
namespace {

// out[j] = sample(distribution, u[j]).
void samples(Distribution distribution, const uint32_t* u, float* out) {
  if (distribution != Distribution::kNormal) {
    for (int j = 0; j < kPhiloxWords; ++j) out[j] = sample(distribution, u[j]);
    return;
  }
  // The middle of the distribution in lanes, then the tails one by one.
  double q[kPhiloxWords];
  for (int j = 0; j < kPhiloxWords; ++j) q[j] = centred_uniform(u[j]);
  for (int j = 0; j < kPhiloxWords; ++j) out[j] = static_cast<float>(normal_middle(q[j]));
  for (int j = 0; j < kPhiloxWords; ++j) {
    if (!(q[j] >= -kNormalMiddle && q[j] <= kNormalMiddle)) {
      out[j] = static_cast<float>(normal_tail(q[j]));
    }
  }
}

}  // namespace

void draw(const Draw& a, const Launch& launch) {
  with_type(a.type, [&]<class T>() {
    const int64_t blocks = (a.count + kPhiloxWords - 1) / kPhiloxWords;
    launch.parallel_for(blocks, 64, [&](int64_t begin, int64_t end) {
      uint32_t words[kPhiloxWords];
      float values[kPhiloxWords];
      for (int64_t block = begin; block < end; ++block) {
        philox_words(a.key, static_cast<uint64_t>(block * kPhiloxCounters), words);
        samples(a.distribution, words, values);
        const int64_t first = block * kPhiloxWords;
        T* out = static_cast<T*>(a.out) + first;
        for_lanes(std::min<int64_t>(kPhiloxWords, a.count - first), [&](int64_t i, auto count) {
          store(out + i, load(values + i) * a.scale, count);
        });
      }
    });
  });
}

}  // namespace compact::kernels::cpu
