// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/ops/stages/map_shapes_impl.h"
#include "compact/ops/stages/map_stages.h"

namespace compact {
namespace {

class ConvStage final : public Stage {
 public:
  ConvStage(int64_t window, int64_t stride, int64_t padding)
      : window_(window),
        stride_(stride),
        padding_(padding),
        pixelwise_(window == 1 && stride == 1 && padding == 0) {}

  Needs needs() const override { return {.input = true}; }
  int parameters() const override { return 1; }
  Work work(const at::Tensor& input, const at::Tensor& output, Weights weights,
            const Pass& pass) const override {
    Work w = Stage::work(input, output, weights, pass);
    w.products = 2.0 * static_cast<double>(output.numel()) *
                 static_cast<double>(weights[0].value[0].numel());
    return w;
  }
  bool reads_means() const override { return pixelwise_; }

  at::Tensor forward(Forward& f) const override {
    const at::Tensor& weight = f.weights[0].value;
    check_like("convolution", f.input, {{"weight", weight}});
    COMPACT_CHECK(weight.dim() == 4 && weight.size(2) == window_ && weight.size(3) == window_,
                  "[convolution] the weight must be [out, in, ", window_, ", ", window_, "], is ",
                  weight.sizes());
    return at::conv2d(f.input, weight, {}, stride_, padding_);
  }

  at::Tensor backward(Backward& b) const override {
    const bool want_weight = b.want_parameters[0];
    at::Tensor gx;
    if (b.means.defined()) {
      if (want_weight) b.gparameters[0] = from_means(b);
      b.means = at::Tensor();
      if (b.want_input) {
        std::vector<int64_t> sizes = b.gy.sizes().vec();
        sizes[1] = b.weights[0].value.size(1);
        gx = std::get<0>(gradients(b, sizes_only(sizes, b.gy), true, false));
      }
    } else {
      std::tie(gx, b.gparameters[0], std::ignore) =
          gradients(b, b.input, b.want_input, want_weight);
    }
    b.input = b.gy = at::Tensor();
    if (!b.want_input) return {};
    return b.plus_residual(gx);
  }

 private:
  std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients(const Backward& b, const at::Tensor& x,
                                                           bool input, bool weight) const {
    return at::convolution_backward(b.gy, x, b.weights[0].value, at::OptionalIntArrayRef(), stride_,
                                    padding_, 1, false, 0, 1, {input, weight, false});
  }

  at::Tensor from_means(const Backward& b) const {
    const int64_t k = b.windows.size;
    const auto rows = [](const at::Tensor& x) {
      return x.permute({0, 2, 3, 1}).reshape({-1, x.size(1)});
    };
    const at::Tensor sums =
        at::avg_pool2d(b.gy, k, k, 0, /*ceil_mode=*/true, false, /*divisor_override=*/1);
    return rows(sums).t().mm(rows(b.means)).view_as(b.weights[0].value);
  }

  int64_t window_, stride_, padding_;
  bool pixelwise_;
};

}  // namespace

std::shared_ptr<const Stage> conv_stage(int64_t window, int64_t stride, int64_t padding) {
  return std::make_shared<ConvStage>(window, stride, padding);
}

}  // namespace compact
