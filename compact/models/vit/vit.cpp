// SPDX-License-Identifier: Apache-2.0
#include "compact/models/vit/vit.h"

#include <ATen/ATen.h>

#include "compact/base/check.h"
#include "compact/models/config_rows.h"
#include "compact/ops/stages/stages.h"

namespace compact {

Vit::Vit(const VitConfig& config, const Policy& policy, const NetworkOptions& options)
    : Classifier(policy, options), config_(config) {
  checked(config_);
  const int64_t n = config_.hidden_size, m = config_.intermediate_size;
  const int64_t pixels = config_.num_channels * config_.patch_size * config_.patch_size;
  const auto table = [&](const char* name, int64_t rows) {
    return parameter(name, normal(name, {rows, n}, config_.initializer_range));
  };
  const LinearStart block{.deviation = config_.initializer_range};
  LinearStart outside = block, qkv = block;
  outside.hidden = false;
  qkv.bias = config_.qkv_bias;
  class_ = table("class", 1);
  positions_ = table("positions", 1 + config_.patches());
  patches_ = linear("patches", pixels, {n}, outside);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const std::string name = cat("layers.", i, ".");
    layers_.push_back({.attn_norm = layer_norm(name + "attn.norm", n),
                       .qkv = linear(name + "attn.qkv", n, {n, n, n}, qkv),
                       .out = linear(name + "attn.out", n, {n}, block),
                       .mlp_norm = layer_norm(name + "mlp.norm", n),
                       .up = linear(name + "mlp.up", n, {m}, block),
                       .down = linear(name + "mlp.down", m, {n}, block)});
  }
  final_norm_ = layer_norm("final.norm", n);
  head_ = linear("head", n, {config_.classes}, outside);
  finish();

  Part& first = add_part("patches", slot_of(policy, "patches.input", Role::kImage, pixels));
  first.add_linear(patches_);
  first.segment.finish();
  const BlockShape shape = {.hidden = n,
                            .intermediate = m,
                            .heads = config_.num_attention_heads,
                            .head_dim = n / config_.num_attention_heads,
                            .eps = config_.layer_norm_eps,
                            .attention_dropout = config_.attention_dropout,
                            .causal = false,
                            .dropout = config_.hidden_dropout,
                            .gelu_tanh = config_.gelu_tanh};
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const std::string name = cat("layers.", i);
    Part& part = add_part(name, slot_of(policy, name + ".attn.input", Role::kInput, n));
    add_ungated_block(part, 0, name, policy, layers_[static_cast<size_t>(i)], shape,
                      attention_of(shape, device(), dtype()));
    part.segment.finish();
  }
  Part& last = add_part("final", slot_of(policy, "final.input", Role::kInput, n));
  last.add(layer_norm_stage(config_.layer_norm_eps), {final_norm_.weight, final_norm_.bias});
  last.segment.finish();
  place_weights();
}

at::Tensor Vit::cut(const at::Tensor& images) const {
  const int64_t c = config_.num_channels, h = config_.height, w = config_.width,
                p = config_.patch_size;
  COMPACT_CHECK(images.dim() == 4 && images.sizes().slice(1) == (at::IntArrayRef{c, h, w}),
                "[vit] images must be [batch, ", c, ", ", h, ", ", w, "], are ", images.sizes());
  return images.to(dtype())
      .reshape({images.size(0), c, h / p, p, w / p, p})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({images.size(0), config_.patches(), c * p * p});
}

at::Tensor Vit::logits(const Tensors& inputs, const Pass& pass, SegmentReport* report) const {
  const SegmentPass within = pass.of_segments();
  const auto& all = parts();
  at::Tensor x = all[0]->run(cut(inputs.at(0)), within, report);
  x = at::cat({class_->weight.expand({x.size(0), 1, x.size(2)}), x}, 1) + positions_->weight;
  x = DropoutKeys(pass).drop(x, pass.training ? config_.hidden_dropout : 0);
  for (size_t i = 1; i + 1 < all.size(); ++i) x = all[i]->run(std::move(x), within, report);
  x = all.back()->run(x.select(1, 0), within, report);
  return at::linear(x, head_.weight->weight, head_.bias->weight);
}

std::vector<std::pair<std::string, at::Tensor>> Vit::named_tensors() const {
  NamedTensors all;
  const int64_t n = config_.hidden_size, c = config_.num_channels, p = config_.patch_size;
  const std::string base = "vit.embeddings.", patches = base + "patch_embeddings.projection.";
  all.emplace_back(base + "cls_token", class_->weight.detach().view({1, 1, n}));
  all.emplace_back(base + "position_embeddings", positions_->weight.detach().unsqueeze(0));
  all.emplace_back(patches + "weight", patches_.weight->weight.detach().view({n, c, p, p}));
  all.emplace_back(patches + "bias", patches_.bias->weight.detach());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const UngatedBlock& l = layers_[i];
    const std::string name = cat("vit.encoder.layer.", i, ".");
    put(all, name + "attention.attention.", l.qkv, {"query", "key", "value"});
    put(all, name + "attention.output.dense", l.out);
    put(all, name + "intermediate.dense", l.up);
    put(all, name + "output.dense", l.down);
    put(all, name + "layernorm_before", l.attn_norm);
    put(all, name + "layernorm_after", l.mlp_norm);
  }
  put(all, "vit.layernorm", final_norm_);
  put(all, "classifier", head_);
  return all;
}

}  // namespace compact
