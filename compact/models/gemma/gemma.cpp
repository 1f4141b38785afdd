// SPDX-License-Identifier: Apache-2.0
#include "compact/models/gemma/gemma.h"

#include <ATen/ATen.h>

#include <cmath>

#include "compact/base/check.h"

namespace compact {
namespace {

std::string gemma_layer(int64_t i, const char* rest) { return cat("layers.", i, ".", rest); }

const GemmaConfig& checked(const GemmaConfig& config) {
  check_gemma_config(config, "model");
  return config;
}

std::shared_ptr<const RopeTables> tables_of(const RopeConfig& rope, const GemmaConfig& config,
                                            const NetworkOptions& options) {
  return std::make_shared<RopeTables>(RopeTables::make(
      rope, config.head_dim, config.max_position_embeddings, options.max_length, options.device));
}

}  // namespace

Gemma::Gemma(const GemmaConfig& config, const Policy& policy, const NetworkOptions& options)
    : LanguageModel(policy, options, checked(config).tokens(), config.hidden_size,
                    config.initializer_range),
      config_(config) {
  const int64_t n = config_.hidden_size, m = config_.intermediate_size, d = config_.head_dim;
  const int64_t q = config_.num_attention_heads * d, kv = config_.num_key_value_heads * d;
  // In the type of the weights, as it was trained.
  scale_ = at::full({}, std::sqrt(static_cast<double>(n)), at::dtype(dtype())).item<double>();
  cap_logits_at(config_.final_logit_softcapping.value_or(0));
  rope_ = tables_of(config_.rope, config_, options);
  sliding_rope_ = config_.head_norms ? tables_of(config_.sliding_rope, config_, options) : rope_;
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const auto name = [&](const char* rest) { return gemma_layer(i, rest); };
    const bool bias = config_.attention_bias;
    Layer l{.attn_norm = norm(name("attn.norm"), n),
            .qkv = in_block(name("attn.qkv"), n, {q, kv, kv}, bias),
            .out = in_block(name("attn.out"), q, {n}, bias),
            .attn_post = norm(name("attn.post_norm"), n),
            .mlp_norm = norm(name("mlp.norm"), n),
            .gate_up = in_block(name("mlp.gate_up"), n, {m, m}, false),
            .down = in_block(name("mlp.down"), m, {n}, false),
            .mlp_post = norm(name("mlp.post_norm"), n)};
    if (config_.head_norms) {
      l.q_norm = norm(name("attn.q_norm"), d);
      l.k_norm = norm(name("attn.k_norm"), d);
    }
    layers_.push_back(l);
  }
  final_norm_ = norm("final.norm", n);
  finish_parameters(config_.tie_word_embeddings);

  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) add_block(layers_[i], i);
  Part& last = add_part("final", slot_of(policy, "final.input", Role::kInput, n));
  last.add(rms_norm_stage(config_.rms_norm_eps, 1), {final_norm_.weight});
  last.segment.finish();
  finish_parts();
}

Network::Affine Gemma::norm(const std::string& name, int64_t width) {
  return {.weight = parameter(name, at::zeros({width}, tensor_options()))};
}

void Gemma::add_block(const Layer& l, int64_t i) {
  const int64_t n = config_.hidden_size, m = config_.intermediate_size, d = config_.head_dim;
  const int64_t heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const double eps = config_.rms_norm_eps;
  const bool slides = config_.sliding_layers[static_cast<size_t>(i)];
  const bool narrow = slides && config_.sliding_window < options().max_length;
  const auto slot = [&](const char* rest, Role role, int64_t width) {
    return slot_of(policy(), gemma_layer(i, rest), role, width);
  };
  Part& b = add_part(cat("layers.", i), slot("attn.input", Role::kInput, n));
  b.add(rms_norm_stage(eps, 1), {l.attn_norm.weight}, slot("attn.norm", Role::kNorm, n));
  // Turned in place, which its backward pass undoes: before norms of heads the product is held.
  const Slot qkv = slot("attn.qkv", Role::kQkv, (heads + 2 * kv_heads) * d);
  const Slot read = config_.head_norms ? slot("attn.heads", Role::kHeads, qkv.width) : qkv;
  b.add_linear(l.qkv, config_.head_norms ? qkv : Slot{});
  if (config_.head_norms) {
    b.add(head_norm_stage(eps, heads, kv_heads, d, 1), {l.q_norm.weight, l.k_norm.weight});
  }
  b.add(rope_stage(slides ? sliding_rope_ : rope_, heads + kv_heads, d), {}, read);
  b.add(attention_stage(heads, kv_heads, d,
                        {.scale = 1 / std::sqrt(config_.query_pre_attn_scalar),
                         .dropout = config_.attention_dropout,
                         .window = narrow ? config_.sliding_window : 0,
                         .softcap = config_.attn_logit_softcapping.value_or(0)}),
        {}, slot("attn.out", Role::kAttention, heads * d));
  b.add_linear(l.out, slot("attn.added", Role::kAdded, n));
  b.add(rms_norm_stage(eps, 1), {l.attn_post.weight});
  const int middle = b.segment.add_residual(0, slot("mlp.input", Role::kResidual, n));
  b.add(rms_norm_stage(eps, 1), {l.mlp_norm.weight}, slot("mlp.norm", Role::kNorm, n));
  b.add_linear(l.gate_up, slot("mlp.gate_up", Role::kGateUp, 2 * m));
  b.add(geglu_stage(m), {}, slot("mlp.product", Role::kProduct, m),
        slot("mlp.gelu", Role::kGate, m));
  b.add_linear(l.down, slot("mlp.added", Role::kAdded, n));
  b.add(rms_norm_stage(eps, 1), {l.mlp_post.weight});
  b.segment.add_residual(middle);
  b.segment.finish();
}

bool Gemma::is_far(int64_t length) const {
  return rope_->is_far(length) || sliding_rope_->is_far(length);
}

at::Tensor Gemma::embedded(const at::Tensor& ids, const at::Tensor& embedding, const Pass&,
                           int64_t) const {
  return at::embedding(embedding, ids, config_.pad_token_id.value_or(-1)) * scale_;
}

std::vector<std::pair<std::string, at::Tensor>> Gemma::named_tensors() const {
  NamedTensors all;
  put(all, "model.embed_tokens", {&embedding()});
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& l = layers_[i];
    const std::string prefix = cat("model.layers.", i, "."), attn = prefix + "self_attn.";
    put(all, prefix + "input_layernorm", l.attn_norm);
    put(all, attn, l.qkv, {"q_proj", "k_proj", "v_proj"});
    if (config_.head_norms) {
      put(all, attn + "q_norm", l.q_norm);
      put(all, attn + "k_norm", l.k_norm);
    }
    put(all, attn + "o_proj", l.out);
    put(all, prefix + "post_attention_layernorm", l.attn_post);
    put(all, prefix + "pre_feedforward_layernorm", l.mlp_norm);
    put(all, prefix + "mlp.", l.gate_up, {"gate_proj", "up_proj"});
    put(all, prefix + "mlp.down_proj", l.down);
    put(all, prefix + "post_feedforward_layernorm", l.mlp_post);
  }
  put(all, "model.norm", final_norm_);
  if (!config_.tie_word_embeddings) put(all, "lm_head", {&head()});
  return all;
}

}  // namespace compact
