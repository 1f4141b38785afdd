// SPDX-License-Identifier: Apache-2.0
// The stages of convolutional segments. Activations are maps [batch, channels, height, width], of
// any memory format.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "compact/ops/segments/segment.h"

namespace compact {

// y = x convolved with weight [out, in, window, window], no bias. Gradients of inputs are exact
// however x is held. Where x is held as means over windows and the convolution is 1 x 1 with stride
// 1, the weight's gradient is made from them: mean(x) summed(gy)^T over windows, which is the
// product with the map that is constant over windows, in as many times fewer operations as windows
// have elements (Barley and Fröning 2024, arXiv:2409.11902, pool activations so; the identity is
// exact).
std::shared_ptr<const Stage> conv_stage(int64_t window, int64_t stride, int64_t padding);

// The running statistics of a batch norm, f32 [channels]; stages share the tensors.
struct BatchNormStatistics {
  at::Tensor mean, variance;
};
// Ioffe and Szegedy 2015, as torch.nn.BatchNorm2d: in training by the batch's statistics, which
// move the running ones (the variance unbiased), else by the running ones. Keeps mean and
// 1/deviation of the batch, or a copy of the running mean and variance.
std::shared_ptr<const Stage> batch_norm_stage(BatchNormStatistics running, double momentum = 0.1,
                                              double eps = 1e-5);

// max(x, 0). With a mask keeps one bit an element; else backward reads the output, or, where the
// output's slot loses signs, it keeps a mask after all (Segment::finish()).
std::shared_ptr<const Stage> relu_stage(bool mask = false);

// Maximum over 3 x 3 windows with stride 2 and padding 1; keeps its place in the window, a byte for
// each element of the output.
std::shared_ptr<const Stage> max_pool_stage();

// The mean over each map: [batch, channels].
std::shared_ptr<const Stage> average_stage();

// Every stride-th pixel, with `more` channels of zeros around (the CIFAR form's shortcut).
std::shared_ptr<const Stage> slice_pad_stage(int64_t stride, int64_t more);

}  // namespace compact
