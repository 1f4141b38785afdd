// SPDX-License-Identifier: Apache-2.0
#include "compact/models/gated_decoder.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"

namespace compact {
namespace {

// How many zeros follow `intermediate`: rows of gate and of up, columns of down, on every device
// alike. Matrix units read rows of a multiple of 16 bytes. None where a file has one tensor of gate
// and up, which leaves no gap between the two.
BlockShape with_zeros(BlockShape shape) {
  if (shape.gate_up_parts > 1) shape.zeros = (8 - shape.intermediate % 8) % 8;
  return shape;
}

}  // namespace

GatedDecoder::GatedDecoder(const Policy& policy, const NetworkOptions& options,
                           const TokenIds& tokens, const BlockShape& shape,
                           const GatedDecoderOptions& decoder)
    : LanguageModel(policy, options, tokens, shape.hidden, decoder.initializer_range),
      shape_(with_zeros(shape)),
      embedding_(decoder.embedding) {
  for (int64_t i = 0; i < decoder.layers; ++i) {
    layers_.push_back(gated_block(
        shape_,
        [&](const char* name, int64_t width) { return norm(cat("layers.", i, ".", name), width); },
        [&](const char* name, int64_t in, std::vector<int64_t> out, bool bias,
            const ZeroPadding& padding) {
          return in_block(cat("layers.", i, ".", name), in, std::move(out), bias, 1, padding);
        }));
    // Block by block, so that no more of them are whole.
    for (const InFiles& f : in_files(static_cast<size_t>(i))) {
      if (f.product) hold_in_codes(layers_.back().*f.affine, f.parts);
    }
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (const InFiles& f : in_files(i)) {
      if (f.product) adapt(layers_[i].*f.affine, f.prefix, f.parts);
    }
  }
  final_norm_ = norm("final.norm", shape_.hidden);
  finish_parameters(decoder.tied);
}

Network::Affine GatedDecoder::norm(const std::string& name, int64_t width) {
  const double start = shape_.norms_add_one ? 0 : 1;
  return {.weight = parameter(name, at::full({width}, start, tensor_options()))};
}

std::shared_ptr<const RopeTables> GatedDecoder::tables(const RopeConfig& rope,
                                                       int64_t max_positions) const {
  return std::make_shared<RopeTables>(RopeTables::make(rope, shape_.head_dim, max_positions,
                                                       options().max_length, options().device));
}

void GatedDecoder::add_block(std::shared_ptr<const RopeTables> rope, int64_t window) {
  const int64_t i = blocks_++;
  BlockShape shape = shape_;
  shape.rope = rope != nullptr;
  shape.window = window < options().max_length ? window : 0;
  const std::string name = cat("layers.", i);
  Part& part = add_part(name, slot_of(policy(), name + ".attn.input", Role::kInput, shape.hidden));
  add_gated_block(part, name, policy(), layers_.at(static_cast<size_t>(i)), shape, rope,
                  attention_of(shape, device(), dtype()));
  if (rope && std::ranges::find(rope_, rope) == rope_.end()) rope_.push_back(std::move(rope));
}

void GatedDecoder::finish_blocks(double scale) {
  Part& last = add_part("final", slot_of(policy(), "final.input", Role::kInput, shape_.hidden));
  last.add(rms_norm_stage(shape_.eps, shape_.norms_add_one ? 1 : 0), {final_norm_.weight});
  if (scale != 1) last.add(scale_stage(scale));
  last.segment.finish();
  finish_parts();
}

bool GatedDecoder::is_far(int64_t length) const {
  return std::ranges::any_of(rope_, [&](const auto& rope) { return rope->is_far(length); });
}

at::Tensor GatedDecoder::embedded(const at::Tensor& ids, const at::Tensor& embedding, const Pass&,
                                  int64_t) const {
  // As in Hugging Face a padding token is not trained as a word.
  at::Tensor x = at::embedding(embedding, ids, tokens().pad.value_or(-1));
  return embedding_ == 1 ? x : x * embedding_;
}

std::vector<GatedDecoder::InFiles> GatedDecoder::in_files(size_t number) const {
  using B = GatedBlock;
  using Parts = std::vector<const char*>;
  const std::string prefix = cat("model.layers.", number, "."), attn = prefix + "self_attn.",
                    after_attn = prefix + "post_attention_layernorm";
  const bool qkv = shape_.qkv_parts > 1, gate_up = shape_.gate_up_parts > 1;
  return {{prefix + "input_layernorm", &B::attn_norm},
          {attn, &B::qkv, qkv ? Parts{"q_proj", "k_proj", "v_proj"} : Parts{"qkv_proj"}, true},
          {attn + "q_norm", &B::q_norm},
          {attn + "k_norm", &B::k_norm},
          {attn + "o_proj", &B::out, {""}, true},
          // The second of the block's norms; transformers names it by what comes before it.
          {after_attn, &B::attn_post},
          {shape_.post_norms ? prefix + "pre_feedforward_layernorm" : after_attn, &B::mlp_norm},
          {prefix + "mlp.", &B::gate_up,
           gate_up ? Parts{"gate_proj", "up_proj"} : Parts{"gate_up_proj"}, true},
          {prefix + "mlp.down_proj", &B::down, {""}, true},
          {prefix + "post_feedforward_layernorm", &B::mlp_post}};
}

std::vector<std::pair<std::string, at::Tensor>> GatedDecoder::named_tensors() const {
  NamedTensors all;
  put(all, "model.embed_tokens", {&embedding()});
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (const InFiles& f : in_files(i)) {
      const Affine& affine = layers_[i].*f.affine;
      if (affine.weight) put(all, f.prefix, affine, f.parts);
    }
  }
  put(all, "model.norm", final_norm_);
  if (&head() != &embedding()) put(all, "lm_head", {&head()});
  return all;
}

}  // namespace compact
