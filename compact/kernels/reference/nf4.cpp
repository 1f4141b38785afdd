// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/nf4.h"

#include "compact/kernels/reference/reference.h"

namespace compact::kernels::reference {

void nf4_decode(const Nf4Decode& a, const Launch&) {
  with_type(a.type, [&]<class T>() {
    T* x = static_cast<T*>(a.x);
    for (int64_t i = 0; i < a.rows * a.n; ++i) {
      const int code = i % 2 ? a.codes[i / 2] & 15 : a.codes[i / 2] >> 4;
      const float scale = nf4_scale(a, a.map, a.scale_codes ? *a.offset : 0, i / kNf4Block);
      store(x[i / a.n * a.x_stride + i % a.n], a.levels[code] * scale);
    }
  });
}

}  // namespace compact::kernels::reference
