// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/reference/reference.h"

namespace compact::kernels::reference {

void dropout(const Dropout& a, const Launch&) {
  const float scale = dropout_scale(a.dropped);
  with_type(a.type, [&]<class T>() {
    for (int64_t i = 0; i < a.count; ++i) {
      const uint32_t word = philox(a.key, static_cast<uint64_t>(i / 8)).v[i % 8 / 2];
      const uint32_t random = i % 2 ? word >> 16 : word & 0xffff;
      const float x = load(static_cast<const T*>(a.x)[i]);
      store(static_cast<T*>(a.y)[i], random < a.dropped ? 0.0f : x * scale);
    }
  });
}

}  // namespace compact::kernels::reference
