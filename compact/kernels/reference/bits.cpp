// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compact/kernels/reference/reference.h"

namespace compact::kernels::reference {

void bit_pack(const BitPack& a, const Launch&) {
  std::fill_n(a.bits, (a.count + 7) / 8, uint8_t{0});
  with_word(a.element, [&]<class U>() {
    const U* x = static_cast<const U*>(a.x);
    for (int64_t i = 0; i < a.count; ++i) {
      const bool set = x[i] - a.low < a.span;
      if (set) a.bits[i / 8] |= static_cast<uint8_t>(1u << i % 8);
      if (!set && x[i] != a.other && a.strays) *a.strays = 1;
    }
  });
}

void bit_unpack(const BitUnpack& a, const Launch&) {
  with_word(a.element, [&]<class U>() {
    for (int64_t i = 0; i < a.count; ++i) {
      static_cast<U*>(a.x)[i] = static_cast<U>(a.bits[i / 8] >> i % 8 & 1 ? a.one : a.zero);
    }
  });
}

}  // namespace compact::kernels::reference
