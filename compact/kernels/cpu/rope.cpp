// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/simd.h"

namespace compact::kernels::cpu {

void rope(const Rope& a, const Launch& launch) {
  with_type(a.type, [&]<class T>() {
    const int64_t half = a.dim / 2;
    const float sign = a.inverse ? -1.0f : 1.0f;
    launch.parallel_for(a.tokens, row_grain(a.heads * a.dim), [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const float* cos = a.cos + token % a.length * half;
        const float* sin = a.sin + token % a.length * half;
        for (int64_t head = 0; head < a.heads; ++head) {
          T* x = static_cast<T*>(a.x) + token * a.row_stride + head * a.head_stride;
          for_lanes(half, [&](int64_t i, auto count) {
            const Vec p = load(x + i, count), q = load(x + half + i, count);
            const Vec c = load(cos + i, count), s = load(sin + i, count) * sign;
            store(x + i, p * c - q * s, count);
            store(x + half + i, q * c + p * s, count);
          });
        }
      }
    });
  });
}

}  // namespace compact::kernels::cpu
