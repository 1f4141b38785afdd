// SPDX-License-Identifier: Apache-2.0
#include "compact/models/gated_decoder.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"

namespace compact {
namespace {

std::string layer_name(int64_t i, const char* rest) { return cat("layers.", i, ".", rest); }

}  // namespace

GatedDecoder::GatedDecoder(const Policy& policy, const NetworkOptions& options,
                           const TokenIds& tokens, const GatedShape& shape,
                           double initializer_range, bool tied)
    : LanguageModel(policy, options, tokens, shape.hidden, initializer_range), shape_(shape) {
  for (int64_t i = 0; i < shape_.layers; ++i) layers_.push_back(layer(i));
  final_norm_ = norm("final.norm", shape_.hidden);
  finish_parameters(tied);
}

GatedBlock GatedDecoder::layer(int64_t i) {
  const int64_t n = shape_.hidden, m = shape_.intermediate, d = shape_.head_dim;
  const int64_t q = shape_.heads * d, kv = shape_.kv_heads * d;
  const auto name = [&](const char* rest) { return layer_name(i, rest); };
  GatedBlock l;
  l.attn_norm = norm(name("attn.norm"), n);
  l.qkv = in_block(name("attn.qkv"), n, {q, kv, kv}, shape_.qkv_bias);
  l.out = in_block(name("attn.out"), q, {n}, shape_.out_bias);
  if (shape_.post_norms) l.attn_post = norm(name("attn.post_norm"), n);
  l.mlp_norm = norm(name("mlp.norm"), n);
  const int64_t zeros = shape_.padding();
  l.gate_up = in_block(name("mlp.gate_up"), n, {m, m}, shape_.mlp_bias, 1, {.rows = zeros});
  l.down = in_block(name("mlp.down"), m, {n}, shape_.mlp_bias, 1, {.columns = zeros});
  if (shape_.post_norms) l.mlp_post = norm(name("mlp.post_norm"), n);
  if (shape_.head_norms) {
    l.q_norm = norm(name("attn.q_norm"), d);
    l.k_norm = norm(name("attn.k_norm"), d);
  }
  return l;
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

void GatedDecoder::add_block(std::shared_ptr<const RopeTables> rope, AttentionOptions attention) {
  const int64_t i = blocks_++, d = shape_.head_dim;
  const int64_t heads = shape_.heads, kv_heads = shape_.kv_heads;
  if (attention.window >= options().max_length) attention.window = 0;
  attention.choice = choose_masked_attention(device(), dtype(), d, attention.dropout);
  const std::string name = cat("layers.", i);
  Part& part = add_part(name, slot_of(policy(), name + ".attn.input", Role::kInput, shape_.hidden));
  add_gated_block(part, name, policy(), layers_.at(static_cast<size_t>(i)),
                  {.hidden = shape_.hidden,
                   .intermediate = shape_.intermediate + shape_.padding(),
                   .heads = heads,
                   .kv_heads = kv_heads,
                   .head_dim = d,
                   .eps = shape_.eps,
                   .norms_add_one = shape_.norms_add_one,
                   .geglu = shape_.geglu,
                   .residual = shape_.residual,
                   .rope = rope ? rope_stage(rope, heads + kv_heads, d) : nullptr,
                   .attention = attention_stage(heads, kv_heads, d, attention)});
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
  at::Tensor x = at::embedding(embedding, ids, shape_.pad.value_or(-1));
  return shape_.embedding == 1 ? x : x * shape_.embedding;
}

std::vector<std::pair<std::string, at::Tensor>> GatedDecoder::named_tensors() const {
  using Parts = std::vector<const char*>;
  const bool fused = shape_.fused_names;
  const std::string behind = "post_attention_layernorm";
  NamedTensors all;
  put(all, "model.embed_tokens", {&embedding()});
  for (size_t i = 0; i < layers_.size(); ++i) {
    const GatedBlock& l = layers_[i];
    const std::string prefix = cat("model.layers.", i, "."), attn = prefix + "self_attn.";
    put(all, prefix + "input_layernorm", l.attn_norm);
    put(all, attn, l.qkv, fused ? Parts{"qkv_proj"} : Parts{"q_proj", "k_proj", "v_proj"});
    if (l.q_norm.weight) put(all, attn + "q_norm", l.q_norm);
    if (l.k_norm.weight) put(all, attn + "k_norm", l.k_norm);
    put(all, attn + "o_proj", l.out);
    // The second of the block's norms; transformers names it by what comes before it.
    if (l.attn_post.weight) put(all, prefix + behind, l.attn_post);
    put(all, prefix + (l.attn_post.weight ? "pre_feedforward_layernorm" : behind), l.mlp_norm);
    put(all, prefix + "mlp.", l.gate_up,
        fused ? Parts{"gate_up_proj"} : Parts{"gate_proj", "up_proj"});
    put(all, prefix + "mlp.down_proj", l.down);
    if (l.mlp_post.weight) put(all, prefix + "post_feedforward_layernorm", l.mlp_post);
  }
  put(all, "model.norm", final_norm_);
  if (&head() != &embedding()) put(all, "lm_head", {&head()});
  return all;
}

}  // namespace compact
