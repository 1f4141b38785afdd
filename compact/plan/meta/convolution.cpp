// SPDX-License-Identifier: Apache-2.0
// Convolutions on the meta device, with what the CPU takes beside their results.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <tuple>

#include "compact/codecs/meta_device.h"
#include "compact/ops/cpu/bf16_products.h"
#include "compact/ops/memory/memory.h"
#include "compact/plan/meta/library_impl.h"

namespace compact {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<at::Tensor>;

std::vector<int64_t> output_sizes(const Tensor& x, const Tensor& w, const Convolution& k) {
  std::vector<int64_t> sizes = {x.size(0), w.size(0)};
  for (int64_t i = 0; i < x.dim() - 2; ++i) {
    const int64_t reach = k.dilation[i] * (w.size(i + 2) - 1) + 1;
    sizes.push_back((x.size(i + 2) + 2 * k.padding[i] - reach) / k.stride[i] + 1);
  }
  return sizes;
}

// Bytes that the CPU's convolutions take beside their results, as operands in blocked layouts.
struct ConvolutionScratch {
  int64_t forward = 0, backward = 0;
};
ConvolutionScratch measured_scratch(const Tensor& x, int64_t images, const Tensor& w,
                                    const Convolution& k, bool want_input) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = images;
  using Key = std::tuple<std::vector<int64_t>, at::MemoryFormat, std::vector<int64_t>, Convolution,
                         at::ScalarType, bool>;
  static std::mutex mutex;
  static std::map<Key, ConvolutionScratch> known;
  const std::lock_guard lock(mutex);
  const Key key(sizes, x.suggest_memory_format(), w.sizes().vec(), k, x.scalar_type(), want_input);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  // Too large to try: both operands once more.
  constexpr int64_t kMostTried = int64_t{1} << 26;
  if (w.numel() > kMostTried) {
    const auto both = static_cast<int64_t>(x.nbytes() + w.nbytes());
    return known[key] = {both, both};
  }
  install_counting_allocator();
  const at::NoGradGuard no_grad;
  const CpuProbe probe;
  const auto options = at::device(at::kCPU).dtype(x.scalar_type());
  const Tensor input = at::zeros(sizes, options).contiguous(x.suggest_memory_format()),
               weight = at::zeros(w.sizes(), options);
  const std::vector<int64_t> none(k.stride.size(), 0);
  const auto [out, forward] = probe.beside([&] {
    return at::convolution(input, weight, {}, k.stride, k.padding, k.dilation, false, none,
                           k.groups);
  });
  const auto backward = probe.beside([&, out = out] {
    return at::convolution_backward(out, input, weight, std::nullopt, k.stride, k.padding,
                                    k.dilation, false, none, k.groups, {want_input, true, false});
  });
  return known[key] = {forward, backward.second};
}

// Above a batch whose maps outweigh the weights it grows by as much with every image, so that two
// batches tell of larger ones. With one thread small batches go another way than large ones.
ConvolutionScratch cpu_convolution_scratch(const Tensor& x, const Tensor& w, const Convolution& k,
                                           bool want_input) {
  const int64_t images = x.size(0),
                map = std::max<int64_t>(1, x.numel() / std::max<int64_t>(1, images));
  const int64_t few =
      std::clamp<int64_t>(8 * w.numel() / map, at::get_num_threads() > 1 ? 2 : 16, 64);
  constexpr int64_t kSmall = 1 << 18;  // elements, where trying costs nothing
  if (images <= 2 * few || x.numel() <= kSmall)
    return measured_scratch(x, images, w, k, want_input);
  const ConvolutionScratch one = measured_scratch(x, few, w, k, want_input),
                           two = measured_scratch(x, 2 * few, w, k, want_input);
  const auto at_size = [&](int64_t a, int64_t b) { return a + (b - a) * (images - few) / few; };
  return {at_size(one.forward, two.forward), at_size(one.backward, two.backward)};
}

// With a value for each dimension.
Convolution window_of(const Tensor& x, at::IntArrayRef stride, at::IntArrayRef padding,
                      at::IntArrayRef dilation, int64_t groups) {
  const auto all = [&](at::IntArrayRef values) {
    return values.size() == 1 ? std::vector<int64_t>(x.dim() - 2, values[0]) : values.vec();
  };
  return {
      .stride = all(stride), .padding = all(padding), .dilation = all(dilation), .groups = groups};
}

Tensor convolution(const Tensor& x, const Tensor& w, const MaybeTensor& bias,
                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                   bool transposed, at::IntArrayRef, int64_t groups) {
  TORCH_CHECK(!transposed, "no transposed convolutions on the meta device");
  const Convolution k = window_of(x, stride, padding, dilation, groups);
  if (converts_bf16(x) && x.numel() > 0)
    return converted_convolution(x, w, bias.value_or(Tensor()), k);
  const Tensor y =
      at::empty(output_sizes(x, w, k), x.options().memory_format(x.suggest_memory_format()));
  if (meta_device() == c10::kCPU) scratch_on(x, cpu_convolution_scratch(x, w, k, true).forward);
  return y;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gy, const Tensor& x, const Tensor& w, at::OptionalIntArrayRef,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool,
    at::IntArrayRef, int64_t groups, std::array<bool, 3> want) {
  const Convolution k = window_of(x, stride, padding, dilation, groups);
  if (converts_bf16(x) && x.numel() > 0) return converted_convolution_backward(gy, x, w, k, want);
  const auto like = [](bool wanted, const Tensor& t) {
    return wanted ? at::empty_like(t) : Tensor();
  };
  const Tensor gx = like(want[0], x), gw = like(want[1], w);
  if (meta_device() == c10::kCPU) scratch_on(x, cpu_convolution_scratch(x, w, k, want[0]).backward);
  return {gx, gw, want[2] ? at::empty({gy.size(1)}, gy.options()) : Tensor()};
}

}  // namespace

void add_convolution(MetaLibrary& library) {
  library.add("convolution", &convolution);
  library.add("convolution_backward", &convolution_backward);
}

}  // namespace compact
