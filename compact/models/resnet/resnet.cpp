// SPDX-License-Identifier: Apache-2.0
#include "compact/models/resnet/resnet.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

// "layer2.0.bn1.weight" -> "resnet.encoder.stages.1.layers.0.layer.0.normalization.weight"
std::string name_in_transformers(const std::string& name) {
  const std::vector<std::string> words = split(name, '.');
  const std::string& last = words.back();
  const auto kind = [](const std::string& word) {
    return word.starts_with("bn") ? "normalization." : "convolution.";
  };
  if (words.size() == 2) {
    return words[0] == "fc" ? "classifier.1." + last
                            : "resnet.embedder.embedder." + std::string(kind(words[0])) + last;
  }
  const int64_t stage = std::stoll(words[0].substr(5)) - 1;
  const std::string block = cat("resnet.encoder.stages.", stage, ".layers.", words[1], ".");
  if (words[2] == "downsample") {
    return block + "shortcut." + (words[3] == "0" ? "convolution." : "normalization.") + last;
  }
  return cat(block, "layer.", words[2].back() - '1', ".", kind(words[2]), last);
}

ResnetInfo cifar(int64_t depth) {
  const int64_t n = (depth - 2) / 6;
  return {cat("resnet", depth),
          cat("CIFAR form, ", n, " blocks a stage, widths 16 to 64"),
          {.blocks = {n, n, n}, .width = 16, .small_images = true, .classes = 10}};
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

Resnet::Layer Resnet::layer(const std::string& conv, const std::string& norm, int64_t in,
                            int64_t out, int64_t window, int64_t stride) {
  Layer l;
  const std::string name = conv + ".weight";
  const auto fan = static_cast<double>(out * window * window);
  l.weight = parameter(name, normal(name, {out, in, window, window}, std::sqrt(2 / fan)));
  const at::TensorOptions f32 = tensor_options().dtype(at::kFloat);  // whatever the type of maps
  l.norm_weight = parameter(norm + ".weight", at::ones({out}, f32));
  l.norm_bias = parameter(norm + ".bias", at::zeros({out}, f32));
  l.statistics = {at::zeros({out}, f32), at::ones({out}, f32)};
  l.stride = stride;
  l.window = window;
  return l;
}

Resnet::Resnet(const ResnetConfig& config, const Policy& policy, const NetworkOptions& options)
    : Classifier(policy, options), config_(config) {
  COMPACT_CHECK(
      !config.blocks.empty() && config.width >= 1 && config.classes >= 1 && config.channels >= 1,
      "[resnet] stages, width, classes and channels must be at least 1");
  const bool small = config.small_images;
  stem_ = layer("conv1", "bn1", config.channels, config.width, small ? 3 : 7, small ? 1 : 2);
  int64_t in = config.width, out = config.width;
  for (size_t stage = 0; stage < config.blocks.size(); ++stage, out *= 2) {
    for (int64_t i = 0; i < config.blocks[stage]; ++i) {
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1, wide = config.bottleneck ? 4 * out : out;
      Block b{.name = cat("layer", stage + 1, ".", i), .stride = stride};
      const std::string name = b.name + ".";
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
  const std::string head = head_name();
  head_ = parameter(head + ".weight", normal(head, {config.classes, in},
                                             std::sqrt(1 / (3 * static_cast<double>(in)))));
  head_bias_ = parameter(head + ".bias", at::zeros({config.classes}, tensor_options()));
  finish();
  build_segments(policy);
}

void Resnet::add_layer(Part& p, int input, const Layer& l, Slot slot) {
  p.add_branch(input, conv_stage(l.window, l.stride, l.window / 2), {l.weight}, std::move(slot));
  p.add(batch_norm_stage(l.statistics), {l.norm_weight, l.norm_bias});
}

void Resnet::add_block(const Block& b, bool first, const Policy& policy) {
  const auto slot = [&](const std::string& rest, Role role) {
    return slot_of(policy, b.name + "." + rest, role);
  };
  // Only the block after the pooled stem has an input that is not negative already.
  const bool bent = first && !config_.small_images;
  Part& p = add_part(b.name, bent ? slot("input", Role::kMap) : Slot{});
  Segment& s = p.segment;
  const int x = bent ? 0 : s.add(relu_stage(), slot("input", Role::kMap));
  int y = x;
  for (size_t i = 0; i < b.layers.size(); ++i) {
    add_layer(p, y, b.layers[i], slot(cat("conv", i + 1), Role::kConv));
    if (i + 1 == b.layers.size()) continue;
    y = s.add(relu_stage(), slot(cat("relu", i + 1), Role::kRelu));
  }
  const int last = s.tensors() - 1;
  const int64_t more = b.layers.back().weight->weight.size(0) - b.layers[0].weight->weight.size(1);
  if (!b.shortcut.empty()) {
    add_layer(p, x, b.shortcut[0], slot("downsample", Role::kConv));
    s.add_residual(last);
  } else if (b.stride != 1 || more > 0) {  // every second pixel, new channels zero
    s.add_branch(x, slice_pad_stage(b.stride, more));
    s.add_residual(last);
  } else {
    s.add_residual(x);
  }
  s.finish();
}

void Resnet::build_segments(const Policy& policy) {
  Part& stem = add_part("stem", slot_of(policy, "stem.input", Role::kImage));
  add_layer(stem, 0, stem_, slot_of(policy, "stem.conv", Role::kConv));
  if (!config_.small_images) {
    stem.add(relu_stage(), {}, slot_of(policy, "stem.relu", Role::kSigns));
    stem.add(max_pool_stage());
  }
  stem.segment.finish();
  for (const Block& b : blocks_) add_block(b, &b == &blocks_[0], policy);
  Part& average = add_part("average", Slot{});
  average.add(relu_stage(), {}, slot_of(policy, "average.input", Role::kSigns));
  average.add(average_stage());
  average.segment.finish();
  place_weights();
}

at::Tensor Resnet::begin(const at::Tensor& images) const {
  COMPACT_CHECK(images.dim() == 4 && images.size(1) == config_.channels,
                "[resnet] images must be [batch, ", config_.channels, ", height, width], are ",
                images.sizes());
  // Channels innermost: convolutions need not reorder their operands, 1.4 times as fast on the CPU.
  return images.to(stem_.weight->weight.scalar_type(), false, false,
                   at::MemoryFormat::ChannelsLast);
}

at::Tensor Resnet::forward(const at::Tensor& images, const Pass& pass,
                           SegmentReport* report) const {
  at::Tensor x = begin(images);
  for (const auto& p : parts()) x = p->run(std::move(x), pass.of_segments(), report);
  return at::linear(x, head_->weight, head_bias_->weight);
}

template <class F>
void Resnet::for_layers(F f) const {
  f(stem_);
  for (const auto& b : blocks_) {
    for (const auto& l : b.layers) f(l);
    for (const auto& l : b.shortcut) f(l);
  }
}

std::vector<std::pair<std::string, at::Tensor>> Resnet::named_tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  const auto add = [&](const Parameter* p) { all.emplace_back(p->name, p->weight.detach()); };
  for_layers([&](const Layer& l) {
    add(l.weight);
    add(l.norm_weight);
    add(l.norm_bias);
    const std::string& name = l.norm_weight->name;
    const std::string norm = name.substr(0, name.rfind('.'));
    all.emplace_back(norm + ".running_mean", l.statistics.mean);
    all.emplace_back(norm + ".running_var", l.statistics.variance);
  });
  add(head_);
  add(head_bias_);
  if (config_.transformers_names) {
    for (auto& [name, tensor] : all) name = name_in_transformers(name);
  }
  return all;
}

bool Resnet::may_be_new(const std::string& name) const {
  return name.starts_with(config_.transformers_names ? "classifier." : head_name() + ".");
}

}  // namespace compact
