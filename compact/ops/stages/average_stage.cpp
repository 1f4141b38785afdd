// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/ops/stages/map_shapes_impl.h"
#include "compact/ops/stages/map_stages.h"

namespace compact {
namespace {

class AverageStage final : public Stage {
 public:
  Needs needs() const override { return {}; }

  at::Tensor forward(Forward& f) const override {
    if (f.want_extras) f.extras = {size_note(f.input)};
    return f.input.permute({0, 2, 3, 1}).mean({1, 2});
  }

  at::Tensor backward(Backward& b) const override {
    at::Tensor gx = empty_map(noted_sizes((*b.extras)[0], b.gy), b.gy);
    const at::Tensor each = b.gy / (gx.size(2) * gx.size(3));
    gx.copy_(each.unsqueeze(2).unsqueeze(3).expand(gx.sizes()));
    b.gy = at::Tensor();
    return b.plus_residual(gx);
  }
};

}  // namespace

std::shared_ptr<const Stage> average_stage() { return std::make_shared<AverageStage>(); }

}  // namespace compact
