// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/ops/stages/map_shapes_impl.h"
#include "compact/ops/stages/map_stages.h"

namespace compact {
namespace {

constexpr int64_t kSize = 3, kStride = 2, kPadding = 1;

// Where the windows of an axis begin.
at::Tensor starts(int64_t count, const at::Tensor& like) {
  return at::arange(count, like.options()).mul_(kStride).sub_(kPadding);
}

class MaxPoolStage final : public Stage {
 public:
  Needs needs() const override { return {}; }

  at::Tensor forward(Forward& f) const override {
    auto [y, places] = at::max_pool2d_with_indices(f.input, kSize, kStride, kPadding);
    if (f.want_extras) {
      // The place in the window, one of nine.
      const int64_t width = f.input.size(3);
      const at::Tensor down = starts(y.size(2), places).view({-1, 1}),
                       right = starts(y.size(3), places);
      const at::Tensor row = places.div(width, "floor").sub_(down),
                       column = places.remainder(width).sub_(right);
      f.extras = {row.mul_(kSize).add_(column).to(at::kByte), size_note(f.input)};
    }
    return y;
  }

  at::Tensor backward(Backward& b) const override {
    const std::vector<int64_t> sizes = noted_sizes((*b.extras)[1], b.gy);
    const at::Tensor place = (*b.extras)[0].to(at::kLong);
    const at::Tensor row =
                         place.div(kSize, "floor").add_(starts(place.size(2), place).view({-1, 1})),
                     column = place.remainder(kSize).add_(starts(place.size(3), place));
    at::Tensor gx =
        at::max_pool2d_with_indices_backward(b.gy, sizes_only(sizes, b.gy), kSize, kStride,
                                             kPadding, 1, false, row.mul_(sizes[3]).add_(column));
    b.gy = at::Tensor();
    return b.plus_residual(gx);
  }
};

}  // namespace

std::shared_ptr<const Stage> max_pool_stage() { return std::make_shared<MaxPoolStage>(); }

}  // namespace compact
