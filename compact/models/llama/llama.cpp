// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/llama.h"

#include <ATen/ATen.h>

#include "compact/base/check.h"

namespace compact {
namespace {

std::string layer_name(int64_t i, const char* rest) { return cat("layers.", i, ".", rest); }

const LlamaConfig& checked(const LlamaConfig& config) {
  check_llama_config(config, "model");
  return config;
}

}  // namespace

Llama::Llama(const LlamaConfig& config, const Policy& policy, const NetworkOptions& options)
    : LanguageModel(policy, options, checked(config).tokens(), config.hidden_size,
                    config.initializer_range),
      config_(config) {
  const int64_t n = config_.hidden_size, m = config_.intermediate_size, d = config_.head_dim;
  const int64_t q = config_.num_attention_heads * d, kv = config_.num_key_value_heads * d;
  rope_ = std::make_shared<RopeTables>(RopeTables::make(
      config_.rope, d, config_.max_position_embeddings, options.max_length, options.device));
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const auto name = [&](const char* rest) { return layer_name(i, rest); };
    Layer l{.attn_norm = norm(name("attn.norm"), n),
            .qkv = in_block(name("attn.qkv"), n, {q, kv, kv}, config_.qkv_bias),
            .out = in_block(name("attn.out"), q, {n}, config_.out_bias),
            .mlp_norm = norm(name("mlp.norm"), n),
            .gate_up = in_block(name("mlp.gate_up"), n, {m, m}, config_.mlp_bias),
            .down = in_block(name("mlp.down"), m, {n}, config_.mlp_bias)};
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
  last.add(rms_norm_stage(config_.rms_norm_eps), {final_norm_.weight});
  if (config_.logits_scaling != 1) last.add(scale_stage(1 / config_.logits_scaling));
  last.segment.finish();
  finish_parts();
}

Network::Affine Llama::norm(const std::string& name, int64_t width) {
  return {.weight = parameter(name, at::ones({width}, tensor_options()))};
}

void Llama::add_block(const Layer& l, int64_t i) {
  const int64_t n = config_.hidden_size, m = config_.intermediate_size, d = config_.head_dim;
  const int64_t heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const int64_t window = config_.slides(i) ? *config_.sliding_window : options().max_length;
  const auto slot = [&](const char* rest, Role role, int64_t width) {
    return slot_of(policy(), layer_name(i, rest), role, width);
  };
  Part& b = add_part(cat("layers.", i), slot("attn.input", Role::kInput, n));
  const auto scale = [&] {
    if (config_.residual_multiplier != 1) b.add(scale_stage(config_.residual_multiplier));
  };
  b.add(rms_norm_stage(config_.rms_norm_eps), {l.attn_norm.weight},
        slot("attn.norm", Role::kNorm, n));
  // Turned in place, which its backward pass undoes: before norms of heads, or where nothing is
  // turned, the product is held as it is.
  const Slot qkv = slot("attn.qkv", Role::kQkv, (heads + 2 * kv_heads) * d), none = {};
  const bool turns = config_.turns(i), norms = config_.head_norms;
  b.add_linear(l.qkv, turns && !norms ? none : qkv);
  const Slot read = norms ? slot("attn.heads", Role::kHeads, qkv.width) : qkv;
  if (norms) {
    b.add(head_norm_stage(config_.rms_norm_eps, heads, kv_heads, d),
          {l.q_norm.weight, l.k_norm.weight}, turns ? none : read);
  }
  if (turns) b.add(rope_stage(rope_, heads + kv_heads, d), {}, read);
  b.add(attention_stage(heads, kv_heads, d,
                        {.scale = config_.attention_multiplier,
                         .dropout = config_.attention_dropout,
                         .window = window < options().max_length ? window : 0}),
        {}, slot("attn.out", Role::kAttention, heads * d));
  b.add_linear(l.out);
  scale();
  const int middle = b.segment.add_residual(0, slot("mlp.input", Role::kResidual, n));
  b.add(rms_norm_stage(config_.rms_norm_eps), {l.mlp_norm.weight},
        slot("mlp.norm", Role::kNorm, n));
  b.add_linear(l.gate_up, slot("mlp.gate_up", Role::kGateUp, 2 * m));
  b.add(swiglu_stage(m), {}, slot("mlp.product", Role::kProduct, m),
        slot("mlp.silu", Role::kGate, m));
  b.add_linear(l.down);
  scale();
  b.segment.add_residual(middle);
  b.segment.finish();
}

at::Tensor Llama::embedded(const at::Tensor& ids, const at::Tensor& embedding, const Pass&,
                           int64_t) const {
  // As in Hugging Face a padding token is not trained as a word.
  at::Tensor x = at::embedding(embedding, ids, config_.pad_token_id.value_or(-1));
  return config_.embedding_multiplier == 1 ? x : x * config_.embedding_multiplier;
}

std::vector<std::pair<std::string, at::Tensor>> Llama::named_tensors() const {
  using Parts = std::vector<const char*>;
  const bool fused = config_.fused_names;
  NamedTensors all;
  put(all, "model.embed_tokens", {&embedding()});
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& l = layers_[i];
    const std::string prefix = cat("model.layers.", i, "."), attn = prefix + "self_attn.";
    put(all, prefix + "input_layernorm", l.attn_norm);
    put(all, attn, l.qkv, fused ? Parts{"qkv_proj"} : Parts{"q_proj", "k_proj", "v_proj"});
    if (l.q_norm.weight) put(all, attn + "q_norm", l.q_norm);
    if (l.k_norm.weight) put(all, attn + "k_norm", l.k_norm);
    put(all, attn + "o_proj", l.out);
    put(all, prefix + "post_attention_layernorm", l.mlp_norm);
    put(all, prefix + "mlp.", l.gate_up,
        fused ? Parts{"gate_up_proj"} : Parts{"gate_proj", "up_proj"});
    put(all, prefix + "mlp.down_proj", l.down);
  }
  put(all, "model.norm", final_norm_);
  if (!config_.tie_word_embeddings) put(all, "lm_head", {&head()});
  return all;
}

}  // namespace compact
