// SPDX-License-Identifier: Apache-2.0
#include "compact/report/picture.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"

namespace compact {
namespace {

constexpr int64_t kGap = 2;  // pixels

void check_maps(const at::Tensor& maps) {
  COMPACT_CHECK(maps.dim() == 4 && maps.numel() > 0 && (maps.size(1) == 1 || maps.size(1) == 3),
                "[picture] maps must be [count, 1 or 3, height, width], are ", maps.sizes());
}

}  // namespace

at::Tensor stretched(const at::Tensor& maps) {
  check_maps(maps);
  const at::Tensor x = maps.to(at::kCPU, at::kFloat);
  COMPACT_CHECK(x.isfinite().all().item<bool>(), "[picture] values must be finite");
  const at::Tensor least = x.amin({1, 2, 3}, true), range = x.amax({1, 2, 3}, true) - least;
  return ((x - least) / range.clamp_min(1e-30) * 255).round().to(at::kByte);
}

at::Tensor tiled(const at::Tensor& maps, int64_t columns, int64_t least_side) {
  check_maps(maps);
  const int64_t count = maps.size(0), height = maps.size(2), width = maps.size(3);
  const int64_t across = std::min(columns, count), down = (count + across - 1) / across;
  const int64_t scale =
      std::max<int64_t>(1, (least_side + std::min(height, width) - 1) / std::min(height, width));
  const int64_t high = height * scale, wide = width * scale;
  const at::Tensor large = maps.repeat_interleave(scale, 2)
                               .repeat_interleave(scale, 3)
                               .expand({count, 3, high, wide})
                               .permute({0, 2, 3, 1});
  at::Tensor picture =
      at::full({down * (high + kGap) + kGap, across * (wide + kGap) + kGap, 3}, 255, at::kByte);
  for (int64_t i = 0; i < count; ++i) {
    picture.narrow(0, kGap + i / across * (high + kGap), high)
        .narrow(1, kGap + i % across * (wide + kGap), wide)
        .copy_(large[i]);
  }
  return picture;
}

}  // namespace compact
