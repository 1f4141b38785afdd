// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/float8.h"

#include <algorithm>

#include "compact/kernels/reference/reference.h"

namespace compact::kernels::reference {

void float8_pack(const Float8Pack& a, const Launch&) {
  if (held_back(a.guard)) return;
  const int64_t blocks = (a.n + kFloat8Block - 1) / kFloat8Block;
  for (int64_t b = 0; b < a.rows * blocks; ++b) {
    const int64_t column = b % blocks * kFloat8Block;
    const int64_t count = std::min(kFloat8Block, a.n - column), at = b / blocks * a.n + column;
    uint32_t largest = 0;
    for (int64_t j = 0; j < count; ++j) {
      largest = std::max(largest, float8_size(a.x[at + j]));
    }
    a.scales[b] = float8_scale(largest);
    const float inverse = float8_inverse(a.scales[b]);
    for (int64_t j = 0; j < count; ++j) {
      const uint32_t word = philox(a.key, static_cast<uint64_t>(32 * b + j / 8)).v[j % 8 / 2];
      a.codes[at + j] = float8_code(float8_format(a.is_signed), a.x[at + j], inverse,
                                    j % 2 ? word >> 16 : word & 0xffffu);
    }
  }
}

void float8_unpack(const Float8Unpack& a, const Launch&) {
  const int64_t blocks = (a.n + kFloat8Block - 1) / kFloat8Block;
  for (int64_t i = 0; i < a.rows * a.n; ++i) {
    const float scale = a.scales[i / a.n * blocks + i % a.n / kFloat8Block];
    a.x[i] = float8_value(float8_format(a.is_signed), a.codes[i], scale);
  }
}

}  // namespace compact::kernels::reference
