// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/draw.h"

#include <ATen/ATen.h>

#include <cmath>

#include "compact/codecs/launch.h"

namespace compact {
namespace {

// The value that a normal variable is below with probability p, 0 < p < 1.
double normal_quantile(double p) {
  double low = -10, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return low;
}

}  // namespace

void draw(const at::Tensor& out, kernels::Distribution distribution, double scale, uint64_t key) {
  backend_of(out).draw({.out = out.data_ptr(),
                        .count = out.numel(),
                        .key = key,
                        .scale = static_cast<float>(scale),
                        .distribution = distribution,
                        .type = type_of(out)},
                       launch_for(out));
}

at::Tensor draw_kept(at::IntArrayRef sizes, double p, at::Device device, uint64_t key) {
  const at::Tensor z = at::empty(sizes, at::TensorOptions(device).dtype(at::kFloat));
  draw(z, kernels::Distribution::kNormal, 1, key);
  return z.gt(p == 0 ? -INFINITY : normal_quantile(p));
}

}  // namespace compact
