// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/ops/map_stages.h"

namespace compact {
namespace {

class AverageStage final : public Stage {
 public:
  Needs needs() const override { return {}; }

  at::Tensor forward(Forward& f) const override {
    if (f.want_extras) {  // sizes alone
      f.extras = {at::empty({f.input.size(2), f.input.size(3), 0}, f.input.options())};
    }
    return f.input.permute({0, 2, 3, 1}).mean({1, 2});
  }

  at::Tensor backward(Backward& b) const override {
    const int64_t height = (*b.extras)[0].size(0), width = (*b.extras)[0].size(1);
    at::Tensor gx = at::empty({b.gy.size(0), b.gy.size(1), height, width}, b.gy.options(),
                              at::MemoryFormat::ChannelsLast);
    gx.copy_((b.gy / (height * width)).unsqueeze(2).unsqueeze(3).expand(gx.sizes()));
    b.gy = at::Tensor();
    return b.residual.defined() ? gx.add_(b.residual) : gx;
  }
};

}  // namespace

std::shared_ptr<const Stage> average_stage() { return std::make_shared<AverageStage>(); }

}  // namespace compact
