// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/normal.h"
#include "compact/kernels/reference/reference.h"

namespace compact::kernels::reference {

void draw(const Draw& a, const Launch&) {
  with_type(a.type, [&]<class T>() {
    for (int64_t i = 0; i < a.count; ++i) {
      const uint32_t u = philox(a.key, static_cast<uint64_t>(i / 4)).v[i % 4];
      store(static_cast<T*>(a.out)[i], sample(a.distribution, u) * a.scale);
    }
  });
}

}  // namespace compact::kernels::reference
