// SPDX-License-Identifier: Apache-2.0
// The values of the codes of kernels::Nf4Decode: the arithmetic that every backend shares.
#pragma once

#include "compact/kernels/kernels.h"

namespace compact::kernels {

// NormalFloat of 4 bits (Dettmers et al. 2023, arXiv 2305.14314), as bitsandbytes has it.
inline constexpr float kNf4Levels[16] = {-1.0f,
                                         -0.6961928009986877f,
                                         -0.5250730514526367f,
                                         -0.39491748809814453f,
                                         -0.28444138169288635f,
                                         -0.18477343022823334f,
                                         -0.09105003625154495f,
                                         0.0f,
                                         0.07958029955625534f,
                                         0.16093020141124725f,
                                         0.24611230194568634f,
                                         0.33791524171829224f,
                                         0.44070982933044434f,
                                         0.5626170039176941f,
                                         0.7229568362236023f,
                                         1.0f};

COMPACT_HOST_DEVICE inline int64_t nf4_blocks(const Nf4Decode& a) {
  return (a.rows * a.n + kNf4Block - 1) / kNf4Block;
}
// The factor of a block's levels; `map` is a.map, or a copy of it.
COMPACT_HOST_DEVICE inline float nf4_scale(const Nf4Decode& a, const float* map, float offset,
                                           int64_t block) {
  if (!a.scale_codes) return a.scales[block];
  return map[a.scale_codes[block]] * a.scales[block / kNf4Nested] + offset;
}

}  // namespace compact::kernels
