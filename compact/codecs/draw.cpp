// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/draw.h"

#include "compact/codecs/launch.h"

namespace compact {

void draw(const at::Tensor& out, kernels::Distribution distribution, double scale, uint64_t key) {
  backend_of(out).draw({.out = out.data_ptr(),
                        .count = out.numel(),
                        .key = key,
                        .scale = static_cast<float>(scale),
                        .distribution = distribution,
                        .type = type_of(out)},
                       launch_for(out));
}

}  // namespace compact
