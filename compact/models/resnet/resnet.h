// SPDX-License-Identifier: Apache-2.0
// Residual networks (He et al. 2016): the ImageNet form (resnet18, resnet50, as in torchvision) and
// the CIFAR form (resnet20 ... resnet56: 3 x 3 stem, shortcuts without weights). Every block is one
// segment, that begins with the ReLU of its input.
//
// Slots: stem.{input,conv,relu}, of every block NAME.{input,conv1,relu1,conv2,...,downsample},
// average.input. What a convolution reads is `input` or `relu`, what a norm reads is `conv` or
// `downsample`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compact/models/classifier.h"
#include "compact/ops/stages/map_stages.h"

namespace compact {

struct ResnetConfig {
  std::vector<int64_t> blocks;  // of each stage; the stages halve the map and double the width
  int64_t width = 64;           // of the first stage
  bool bottleneck = false;      // 1 x 1, 3 x 3, 1 x 1 to four times the width; else 3 x 3, 3 x 3
  bool small_images = false;    // the CIFAR form
  int64_t channels = 3, classes = 1000;
  bool transformers_names = false;  // of tensors, as Hugging Face's ResNetForImageClassification
  bool operator==(const ResnetConfig&) const = default;
};

struct ResnetInfo {
  std::string name, summary;
  ResnetConfig config;
};
std::span<const ResnetInfo> resnets();

class Resnet final : public Classifier {
 public:
  // Convolutions normal with variance 2 / (output channels * window), norms 1 and 0.
  Resnet(const ResnetConfig& config, const Policy& policy = {}, const NetworkOptions& options = {});
  Resnet(const Resnet&) = delete;

  // images [batch, channels, height, width] -> logits [batch, classes].
  at::Tensor forward(const at::Tensor& images, const Pass& pass,
                     SegmentReport* report = nullptr) const;
  at::Tensor logits(const Tensors& inputs, const Pass& pass,
                    SegmentReport* report = nullptr) const override {
    return forward(inputs.at(0), pass, report);
  }

  const ResnetConfig& config() const { return config_; }
  // Parameters and running statistics, with the names of torchvision (CIFAR form: those of
  // pytorch_resnet_cifar10) or of transformers: copying into them loads.
  std::vector<std::pair<std::string, at::Tensor>> named_tensors() const override;
  bool may_be_new(const std::string& name) const override;

 private:
  struct Layer {  // convolution and norm
    const Parameter *weight = nullptr, *norm_weight = nullptr, *norm_bias = nullptr;
    BatchNormStatistics statistics;
    int64_t window = 1, stride = 1;
  };
  struct Block {
    std::string name;
    int64_t stride = 1;
    std::vector<Layer> layers = {};
    std::vector<Layer> shortcut = {};  // none or one
  };
  std::string head_name() const { return config_.small_images ? "linear" : "fc"; }
  Layer layer(const std::string& conv, const std::string& norm, int64_t in, int64_t out,
              int64_t window, int64_t stride);
  // Calls f on every layer, in the order of the forward pass.
  template <class F>
  void for_layers(F f) const;
  // Once all layers are there.
  void build_segments(const Policy& policy);
  void add_block(const Block& block, bool first, const Policy& policy);
  // Images as the first segment reads them.
  at::Tensor begin(const at::Tensor& images) const;
  // Appends convolution and norm, from tensor `input`; the convolution's output is NAME.SLOT.
  static void add_layer(Part& part, int input, const Layer& layer, Slot slot);

  ResnetConfig config_;
  Layer stem_;
  std::vector<Block> blocks_;
  const Parameter *head_ = nullptr, *head_bias_ = nullptr;
};

}  // namespace compact
