// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/ops/autograd.h"
#include "compact/ops/map_stages.h"

namespace compact {
namespace {

constexpr int64_t kSize = 3, kStride = 2, kPadding = 1;

class MaxPoolStage final : public Stage {
 public:
  Needs needs() const override { return {}; }

  at::Tensor forward(Forward& f) const override {
    const int64_t height = f.input.size(2), width = f.input.size(3);
    auto [y, places] = at::max_pool2d_with_indices(f.input, kSize, kStride, kPadding);
    if (f.want_extras) {
      // The place in the window, one of nine.
      const auto starts = [&](int64_t count, const at::Tensor& like) {
        return at::arange(count, like.options()).mul_(kStride).sub_(kPadding);
      };
      const at::Tensor row =
                           places.div(width, "floor").sub_(starts(y.size(2), places).view({-1, 1})),
                       column = places.remainder(width).sub_(starts(y.size(3), places));
      f.extras = {row.mul_(kSize).add_(column).to(at::kByte),
                  at::empty({height, width, 0}, f.input.options())};  // its sizes alone
    }
    return y;
  }

  at::Tensor backward(Backward& b) const override {
    const at::Tensor& place = (*b.extras)[0];
    const int64_t height = (*b.extras)[1].size(0), width = (*b.extras)[1].size(1);
    const at::Tensor wide = place.to(at::kLong);
    const auto starts = [&](int64_t count) {
      return at::arange(count, wide.options()).mul_(kStride).sub_(kPadding);
    };
    const at::Tensor row = wide.div(kSize, "floor").add_(starts(place.size(2)).view({-1, 1})),
                     column = wide.remainder(kSize).add_(starts(place.size(3)));
    const at::Tensor places = row.mul_(width).add_(column);
    // Of the input only the sizes are read.
    const at::Tensor x = sizes_only({b.gy.size(0), b.gy.size(1), height, width}, b.gy);
    at::Tensor gx =
        at::max_pool2d_with_indices_backward(b.gy, x, kSize, kStride, kPadding, 1, false, places);
    b.gy = at::Tensor();
    return b.residual.defined() ? gx.add_(b.residual) : gx;
  }
};

}  // namespace

std::shared_ptr<const Stage> max_pool_stage() { return std::make_shared<MaxPoolStage>(); }

}  // namespace compact
