// SPDX-License-Identifier: Apache-2.0
// Vision transformers (Dosovitskiy et al. 2021): an image is cut into patches, which blocks read as
// a sequence after a token for the class. Every block is one segment.
//
// Parameters: class, positions, patches, layers.N.attn.{norm,qkv,out}, layers.N.mlp.{norm,up,down},
// final.norm, head, and their names with .bias. Slots: patches.input, layers.N.attn.{input,norm,
// qkv,out}, layers.N.mlp.{input,norm,up,gelu}, final.input.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compact/models/classifier.h"
#include "compact/networks/ungated_block.h"

namespace compact {

class ConfigRows;

// In the words of Hugging Face's `config.json` of model_type `vit`.
struct VitConfig {
  int64_t hidden_size = 768, intermediate_size = 3072;
  int64_t num_hidden_layers = 12, num_attention_heads = 12;
  int64_t height = 224, width = 224;  // image_size
  int64_t patch_size = 16, num_channels = 3;
  bool gelu_tanh = false;  // hidden_act gelu_new
  bool qkv_bias = true;
  double layer_norm_eps = 1e-12;
  double hidden_dropout = 0, attention_dropout = 0;
  double initializer_range = 0.02;
  int64_t classes = 2;
  std::vector<std::string> labels;                      // of the classes, in order; none: nameless
  std::vector<double> image_mean = {}, image_std = {};  // of each channel; none: 0.5

  int64_t patches() const { return (height / patch_size) * (width / patch_size); }
  bool operator==(const VitConfig&) const = default;
};
void keys_of(ConfigRows& rows, VitConfig& c);  // see config_rows.h

class Vit final : public Classifier {
 public:
  // Weights normal(0, initializer_range), norms 1, biases 0.
  Vit(const VitConfig& config, const Policy& policy = {}, const NetworkOptions& options = {});
  Vit(const Vit&) = delete;

  // [batch, classes], from inputs {images [batch, channels, height, width]}.
  at::Tensor logits(const Tensors& inputs, const Pass& pass,
                    SegmentReport* report = nullptr) const override;

  const VitConfig& config() const { return config_; }
  // The names of published files; the patches' matrix as the convolution that it is there.
  std::vector<std::pair<std::string, at::Tensor>> named_tensors() const override;
  bool may_be_new(const std::string& name) const override { return name.starts_with("classifier"); }

 private:
  // [batch, patches, channels patch^2]
  at::Tensor cut(const at::Tensor& images) const;

  VitConfig config_;
  const Parameter *class_ = nullptr, *positions_ = nullptr;
  Affine patches_, final_norm_, head_;
  std::vector<UngatedBlock> layers_;
};

}  // namespace compact
