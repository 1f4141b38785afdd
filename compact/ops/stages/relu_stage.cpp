// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/codecs/launch.h"
#include "compact/ops/autograd/autograd.h"
#include "compact/ops/stages/map_stages.h"

namespace compact {
namespace {

// The mask's bits are in the order of a channels-last map, whatever the map's own order.
at::Tensor innermost(const at::Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); }

class ReluStage final : public Stage {
 public:
  explicit ReluStage(bool mask) : mask_(mask) {}

  Needs needs() const override { return {.output = !mask_}; }

  bool reads_signs() const override { return !mask_; }
  std::shared_ptr<const Stage> keeping_signs() const override {
    return std::make_shared<ReluStage>(/*mask=*/true);
  }

  at::Tensor forward(Forward& f) const override {
    const at::Tensor y = f.overwrite ? at::relu_(f.input) : at::relu(f.input);
    // The first run keeps the mask: a map rebuilt from a rounded tensor could have other signs.
    if (mask_ && f.want_extras && !f.again) {
      f.extras = signs_->encode(innermost(y), 0).parts;
    }
    return y;
  }

  at::Tensor backward(Backward& b) const override {
    at::Tensor gx;
    if (mask_) {
      gx = innermost(b.gy);
      b.gy = at::Tensor();
      const at::Tensor off = at::empty_like(gx, gx.options().dtype(at::kBool));
      backend_of(gx).bit_unpack(
          {.bits = static_cast<const uint8_t*>((*b.extras)[0].const_data_ptr()),
           .x = off.data_ptr(),
           .count = off.numel(),
           .element = 1,
           .zero = 1,
           .one = 0},
          launch_for(gx));
      gx = alone(gx) ? gx.masked_fill_(off, 0) : gx.masked_fill(off, 0);
    } else {
      gx = at::threshold_backward(b.gy, b.output, 0);
      b.gy = b.output = at::Tensor();
    }
    return b.plus_residual(gx);
  }

 private:
  bool mask_;
  CodecPtr signs_ = Treatment::of_signs().codec();
};

}  // namespace

std::shared_ptr<const Stage> relu_stage(bool mask) { return std::make_shared<ReluStage>(mask); }

}  // namespace compact
