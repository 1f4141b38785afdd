// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/ops/stages/map_stages.h"

namespace compact {
namespace {

class BatchNormStage final : public Stage {
 public:
  BatchNormStage(BatchNormStatistics running, double momentum, double eps)
      : running_(std::move(running)), momentum_(momentum), eps_(eps) {}

  Needs needs() const override { return {.input = true}; }
  int parameters() const override { return 2; }
  bool reads_channels() const override { return true; }

  std::shared_ptr<const Stage> stand_in() const override {
    const BatchNormStatistics there{numbers_like(running_.mean), numbers_like(running_.variance)};
    return std::make_shared<BatchNormStage>(there, momentum_, eps_);
  }

  at::Tensor forward(Forward& f) const override {
    const bool batch = f.pass.training;
    const auto sizes = f.input.sizes();
    COMPACT_CHECK(f.input.dim() == 4,
                  "[batch norm] maps must be [batch, channels, height, width], are ", sizes);
    COMPACT_CHECK(!batch || sizes[0] * sizes[2] * sizes[3] > 1,
                  "[batch norm] in training a channel needs more than one value, the maps are ",
                  sizes, ": a larger batch or larger images are needed");
    // The running statistics move once for a batch. A forward pass that runs again uses those that
    // its first run kept, since the running ones may have moved.
    at::Tensor running_mean, running_variance;
    if (!f.again) {
      running_mean = running_.mean, running_variance = running_.variance;
    } else if (!batch) {
      running_mean = f.extras[0], running_variance = f.extras[1];
    }
    auto [y, mean, scale] =
        at::native_batch_norm(f.input, f.weights[0].value, f.weights[1].value, running_mean,
                              running_variance, batch, momentum_, eps_);
    if (!f.want_extras) return y;
    if (batch) {
      f.extras = {mean, scale};
    } else if (!f.again) {
      f.extras = {running_mean.clone(), running_variance.clone()};
    }
    return y;
  }

  at::Tensor backward(Backward& b) const override {
    const bool trained = b.pass.training;
    if (b.gy.numel() == 0) {  // the kernel divides by it
      b.gparameters = {at::zeros_like(b.weights[0].value), at::zeros_like(b.weights[1].value)};
      return b.want_input ? b.plus_residual(std::move(b.gy)) : at::Tensor();
    }
    const at::Tensor &mean = (*b.extras)[0], &scale = (*b.extras)[1], none;
    // CUDA's kernel wants the batch's statistics to be defined, though it does not read them.
    const at::Tensor empty = at::empty({0}, mean.options());
    auto [gx, gweight, gbias] = at::native_batch_norm_backward(
        b.gy, b.input, b.weights[0].value, trained ? none : mean, trained ? none : scale,
        trained ? mean : empty, trained ? scale : empty, trained, eps_,
        {b.want_input, b.want_parameters[0], b.want_parameters[1]});
    b.gy = b.input = at::Tensor();
    b.gparameters = {gweight, gbias};
    if (!b.want_input) return {};
    return b.plus_residual(gx);
  }

 private:
  BatchNormStatistics running_;
  double momentum_, eps_;
};

}  // namespace

std::shared_ptr<const Stage> batch_norm_stage(BatchNormStatistics running, double momentum,
                                              double eps) {
  return std::make_shared<BatchNormStage>(std::move(running), momentum, eps);
}

}  // namespace compact
