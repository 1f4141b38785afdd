// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>

#include "compact/ops/cpu/bf16_products.h"
#include "compact/ops/cpu/parts_impl.h"

namespace compact {
namespace {

using at::Tensor;

// Most elements of a map converted to f32 at a time, unless one sample has more.
constexpr int64_t kMapElements = int64_t{1} << 20;

int64_t at_dim(const std::vector<int64_t>& values, int64_t i, int64_t otherwise) {
  const auto count = static_cast<int64_t>(values.size());
  return i < count ? values[i] : count == 1 ? values[0] : otherwise;
}

// Elements of a sample's result.
int64_t sample_of_result(const Tensor& x, const Tensor& w, const Convolution& how) {
  int64_t elements = how.transposed ? w.size(1) * how.groups : w.size(0);
  for (int64_t i = 0; i < x.dim() - 2; ++i) {
    const int64_t stride = std::max<int64_t>(1, at_dim(how.stride, i, 1)),
                  reach = at_dim(how.dilation, i, 1) * (w.size(i + 2) - 1) + 1,
                  pad = 2 * at_dim(how.padding, i, 0);
    elements *= how.transposed
                    ? (x.size(i + 2) - 1) * stride - pad + reach + at_dim(how.output_padding, i, 0)
                    : (x.size(i + 2) + pad - reach) / stride + 1;
  }
  return elements;
}

Parts parts_of_samples(const Tensor& x, const Tensor& w, const Convolution& how) {
  const int64_t sample = std::max(x.numel() / x.size(0), sample_of_result(x, w, how));
  return {x.size(0), std::max<int64_t>(1, kMapElements / std::max<int64_t>(1, sample)),
          x.is_meta()};
}

// The samples of all from `first` on, rounded; `all` is made with the first of them, laid out
// alike.
void round_into(Tensor& all, int64_t samples, const Tensor& part, int64_t first) {
  if (!all.defined()) {
    std::vector<int64_t> sizes = part.sizes().vec();
    sizes[0] = samples;
    all = at::empty_strided(sizes, part.strides(), part.options().dtype(at::kBFloat16));
  }
  all.narrow(0, first, part.size(0)).copy_(part);
}

void add_part(Tensor& sum, const Tensor& part) {
  if (sum.defined()) {
    sum.add_(part);
  } else {
    sum = part;
  }
}

}  // namespace

Tensor converted_convolution(const Tensor& x, const Tensor& w, const Tensor& bias,
                             const Convolution& how) {
  const Tensor weight = w.to(at::kFloat);
  const std::optional<Tensor> added =
      bias.defined() ? std::optional(bias.to(at::kFloat)) : std::nullopt;
  const Parts parts = parts_of_samples(x, w, how);
  Tensor out;
  for (int64_t i = 0; i < parts.n; i = parts.after(i)) {
    const Tensor part =
        at::convolution(x.narrow(0, i, parts.size_at(i)).to(at::kFloat), weight, added, how.stride,
                        how.padding, how.dilation, how.transposed, how.output_padding, how.groups);
    round_into(out, parts.n, part, i);
  }
  return out;
}

std::tuple<Tensor, Tensor, Tensor> converted_convolution_backward(const Tensor& gy, const Tensor& x,
                                                                  const Tensor& w,
                                                                  const Convolution& how,
                                                                  std::array<bool, 3> want) {
  const Tensor weight = w.to(at::kFloat);
  std::vector<int64_t> all_but_channels = {0};
  for (int64_t i = 2; i < gy.dim(); ++i) all_but_channels.push_back(i);
  const Parts parts = parts_of_samples(x, w, how);
  Tensor gx, gw, gbias;  // the last two in f32
  for (int64_t i = 0; i < parts.n; i = parts.after(i)) {
    const int64_t size = parts.size_at(i);
    const Tensor g = gy.narrow(0, i, size).to(at::kFloat);
    if (want[2]) add_part(gbias, g.sum(all_but_channels));
    if (!want[0] && !want[1]) continue;
    const auto [a, b, none] = at::convolution_backward(
        g, x.narrow(0, i, size).to(at::kFloat), weight, std::nullopt, how.stride, how.padding,
        how.dilation, how.transposed, how.output_padding, how.groups, {want[0], want[1], false});
    if (want[0]) round_into(gx, parts.n, a, i);
    if (want[1]) add_part(gw, b);
  }
  const auto rounded = [](const Tensor& sum) {
    return sum.defined() ? sum.to(at::kBFloat16) : Tensor();
  };
  return {gx, rounded(gw), rounded(gbias)};
}

}  // namespace compact
