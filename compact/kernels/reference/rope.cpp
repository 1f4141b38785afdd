// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/reference/reference.h"

namespace compact::kernels::reference {

void rope(const Rope& a, const Launch&) {
  with_type(a.type, [&]<class T>() {
    const int64_t half = a.dim / 2;
    for (int64_t token = 0; token < a.tokens; ++token) {
      const float* cos = a.cos + token % a.length * half;
      const float* sin = a.sin + token % a.length * half;
      for (int64_t head = 0; head < a.heads; ++head) {
        T* x = static_cast<T*>(a.x) + token * a.row_stride + head * a.head_stride;
        for (int64_t i = 0; i < half; ++i) {
          const float p = load(x[i]), q = load(x[i + half]);
          const float s = a.inverse ? -sin[i] : sin[i];
          store(x[i], p * cos[i] - q * s);
          store(x[i + half], q * cos[i] + p * s);
        }
      }
    }
  });
}

}  // namespace compact::kernels::reference
