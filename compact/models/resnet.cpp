// SPDX-License-Identifier: Apache-2.0
#include "compact/models/resnet.h"

#include <ATen/ATen.h>

#include <cmath>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/base/text.h"
#include "compact/codecs/launch.h"

namespace compact {
namespace {

ResnetInfo cifar(int64_t depth) {
  const int64_t n = (depth - 2) / 6;
  return {cat("resnet", depth),
          cat("CIFAR form, ", n, " blocks a stage, widths 16 to 64"),
          {.blocks = {n, n, n}, .width = 16, .small_images = true, .classes = 10}};
}

at::Tensor normal(at::IntArrayRef sizes, double variance, const at::TensorOptions& options,
                  uint64_t key) {
  const at::Tensor x = at::empty(sizes, options);
  backend_of(x).draw({.out = x.data_ptr(),
                      .count = x.numel(),
                      .key = key,
                      .scale = static_cast<float>(std::sqrt(variance)),
                      .distribution = kernels::Distribution::kNormal,
                      .type = type_of(x)},
                     launch_for(x));
  return x;
}

}  // namespace

std::span<const ResnetInfo> resnets() {
  static const ResnetInfo all[] = {
      {"resnet18", "ImageNet form, 18 layers", {.blocks = {2, 2, 2, 2}}},
      {"resnet50",
       "ImageNet form, 50 layers, bottlenecks",
       {.blocks = {3, 4, 6, 3}, .bottleneck = true}},
      cifar(20),
      cifar(32),
      cifar(44),
      cifar(56),
  };
  return all;
}

const ResnetInfo& resnet_named(const std::string& name) {
  std::vector<std::string> known;
  for (const ResnetInfo& r : resnets()) {
    if (r.name == name) return r;
    known.push_back(r.name);
  }
  fail("no model `", name, "`", suggestion(name, known));
}

Parameter Resnet::parameter(const std::string& name, const at::Tensor& value) const {
  Parameter p;
  p.name = name;
  p.weight = value.requires_grad_(true);
  p.decay = value.dim() > 1;
  return p;
}

Resnet::Layer Resnet::layer(const std::string& conv, const std::string& norm, int64_t in,
                            int64_t out, int64_t window, int64_t stride) {
  Layer l;
  const std::string name = conv + ".weight";
  const uint64_t key = derive(seed_, label_of(name.data(), name.size()));
  const auto fan = static_cast<double>(out * window * window);
  l.weight = parameter(name, normal({out, in, window, window}, 2 / fan, options_, key));
  l.norm.weight = parameter(norm + ".weight", at::ones({out}, options_));
  l.norm.bias = parameter(norm + ".bias", at::zeros({out}, options_));
  l.norm.mean = at::zeros({out}, options_);
  l.norm.variance = at::ones({out}, options_);
  l.stride = stride;
  l.padding = window / 2;
  return l;
}

Resnet::Resnet(const ResnetConfig& config, at::TensorOptions options, uint64_t seed)
    : config_(config), options_(options), seed_(seed) {
  COMPACT_CHECK(
      !config.blocks.empty() && config.width >= 1 && config.classes >= 1 && config.channels >= 1,
      "[resnet] stages, width, classes and channels must be at least 1");
  const bool small = config.small_images;
  stem_ = layer("conv1", "bn1", config.channels, config.width, small ? 3 : 7, small ? 1 : 2);
  int64_t in = config.width, out = config.width;
  for (size_t stage = 0; stage < config.blocks.size(); ++stage, out *= 2) {
    for (int64_t i = 0; i < config.blocks[stage]; ++i) {
      const std::string name = cat("layer", stage + 1, ".", i, ".");
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1, wide = config.bottleneck ? 4 * out : out;
      Block b;
      b.stride = stride;
      if (config.bottleneck) {
        b.layers.push_back(layer(name + "conv1", name + "bn1", in, out, 1, 1));
        b.layers.push_back(layer(name + "conv2", name + "bn2", out, out, 3, stride));
        b.layers.push_back(layer(name + "conv3", name + "bn3", out, wide, 1, 1));
      } else {
        b.layers.push_back(layer(name + "conv1", name + "bn1", in, out, 3, stride));
        b.layers.push_back(layer(name + "conv2", name + "bn2", out, out, 3, 1));
      }
      if (!small && (stride != 1 || in != wide)) {
        b.shortcut.push_back(
            layer(name + "downsample.0", name + "downsample.1", in, wide, 1, stride));
      }
      blocks_.push_back(std::move(b));
      in = wide;
    }
  }
  const std::string head = small ? "linear" : "fc";
  head_ = parameter(head + ".weight",
                    normal({config.classes, in}, 1 / (3 * static_cast<double>(in)), options,
                           derive(seed, label_of(head.data(), head.size()))));
  head_bias_ = parameter(head + ".bias", at::zeros({config.classes}, options));
}

at::Tensor Resnet::run(const Layer& l, const at::Tensor& x, bool training) {
  const at::Tensor y = at::conv2d(x, l.weight.weight, {}, l.stride, l.padding);
  return at::batch_norm(y, l.norm.weight.weight, l.norm.bias.weight, l.norm.mean, l.norm.variance,
                        training, 0.1, 1e-5, false);
}

at::Tensor Resnet::run(const Block& b, const at::Tensor& x, bool training) const {
  at::Tensor y = x;
  for (size_t i = 0; i < b.layers.size(); ++i) {
    y = run(b.layers[i], y, training);
    if (i + 1 < b.layers.size()) at::relu_(y);
  }
  at::Tensor through = x;
  if (!b.shortcut.empty()) {
    through = run(b.shortcut[0], x, training);
  } else if (b.stride != 1 || x.size(1) != y.size(1)) {  // every second pixel, new channels zero
    const int64_t more = y.size(1) - x.size(1);
    through = at::constant_pad_nd(x.slice(2, 0, {}, b.stride).slice(3, 0, {}, b.stride),
                                  {0, 0, 0, 0, more / 2, more - more / 2});
  }
  y.add_(through);
  return at::relu_(y);
}

at::Tensor Resnet::forward(const at::Tensor& images, bool training) const {
  COMPACT_CHECK(images.dim() == 4 && images.size(1) == config_.channels,
                "[resnet] images must be [batch, ", config_.channels, ", height, width], are ",
                images.sizes());
  at::Tensor x = run(stem_, images, training);
  at::relu_(x);
  if (!config_.small_images) x = at::max_pool2d(x, 3, 2, 1);
  for (const Block& b : blocks_) x = run(b, x, training);
  return at::linear(x.mean({2, 3}), head_.weight, head_bias_.weight);
}

template <class Self, class F>
void Resnet::for_layers(Self& self, F f) {
  f(self.stem_);
  for (auto& b : self.blocks_) {
    for (auto& l : b.layers) f(l);
    for (auto& l : b.shortcut) f(l);
  }
}

std::vector<Parameter*> Resnet::parameters() {
  std::vector<Parameter*> all;
  for_layers(*this, [&](Layer& l) {
    for (Parameter* p : {&l.weight, &l.norm.weight, &l.norm.bias}) all.push_back(p);
  });
  all.push_back(&head_);
  all.push_back(&head_bias_);
  return all;
}

std::vector<std::pair<std::string, at::Tensor>> Resnet::named_tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  const auto add = [&](const Parameter& p) { all.emplace_back(p.name, p.weight.detach()); };
  for_layers(*this, [&](const Layer& l) {
    add(l.weight);
    add(l.norm.weight);
    add(l.norm.bias);
    const std::string& name = l.norm.weight.name;
    const std::string norm = name.substr(0, name.rfind('.'));
    all.emplace_back(norm + ".running_mean", l.norm.mean);
    all.emplace_back(norm + ".running_var", l.norm.variance);
  });
  add(head_);
  add(head_bias_);
  return all;
}

int64_t Resnet::parameter_count() const {
  int64_t count = head_.weight.numel() + head_bias_.weight.numel();
  for_layers(*this, [&](const Layer& l) {
    count += l.weight.weight.numel() + l.norm.weight.weight.numel() + l.norm.bias.weight.numel();
  });
  return count;
}

}  // namespace compact
