// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/ops/stages/map_shapes_impl.h"
#include "compact/ops/stages/map_stages.h"

namespace compact {
namespace {

class SlicePadStage final : public Stage {
 public:
  SlicePadStage(int64_t stride, int64_t more) : stride_(stride), more_(more) {}

  Needs needs() const override { return {}; }

  at::Tensor forward(Forward& f) const override {
    if (f.want_extras) f.extras = {size_note(f.input)};
    const at::Tensor some = f.input.slice(2, 0, {}, stride_).slice(3, 0, {}, stride_);
    return at::constant_pad_nd(some, {0, 0, 0, 0, more_ / 2, more_ - more_ / 2});
  }

  at::Tensor backward(Backward& b) const override {
    at::Tensor gx = empty_map(noted_sizes((*b.extras)[0], b.gy), b.gy).zero_();
    gx.slice(2, 0, {}, stride_)
        .slice(3, 0, {}, stride_)
        .copy_(b.gy.narrow(1, more_ / 2, gx.size(1)));
    b.gy = at::Tensor();
    return b.plus_residual(gx);
  }

 private:
  int64_t stride_, more_;
};

}  // namespace

std::shared_ptr<const Stage> slice_pad_stage(int64_t stride, int64_t more) {
  return std::make_shared<SlicePadStage>(stride, more);
}

}  // namespace compact
