// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <numeric>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/draw.h"
#include "compact/kernels/kernels.h"
#include "compact/ops/functions/fork.h"
#include "compact/ops/memory/memory_trace.h"

namespace compact {
namespace {

std::string layer_name(int64_t i, const char* rest) { return cat("layers.", i, ".", rest); }

}  // namespace

Llama::Llama(const LlamaConfig& config, const Policy& policy, const ModelOptions& options)
    : config_(config), options_(options) {
  check_llama_config(config_, "model");
  const int64_t n = config_.hidden_size, m = config_.intermediate_size, d = config_.head_dim;
  const int64_t q = config_.num_attention_heads * d, kv = config_.num_key_value_heads * d;
  const int64_t window = config_.sliding_window.value_or(options_.max_length);
  COMPACT_CHECK(options_.max_length <= window, "[llama] sequences of ", options_.max_length,
                " tokens are longer than the model's sliding_window ", window,
                ", up to which tokens attend to all before them");
  rope_ = std::make_shared<RopeTables>(RopeTables::make(
      config_.rope, d, config_.max_position_embeddings, options_.max_length, options_.device));
  embedding_ = make("embedding", {config_.vocab_size, n}, false, {}, policy);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const auto matrix = [&](const char* rest, int64_t out, int64_t in, std::vector<int64_t> parts) {
      return make(layer_name(i, rest), {out, in}, true, std::move(parts), policy);
    };
    const auto norm = [&](const char* rest, int64_t width) {
      return make(layer_name(i, rest), {width}, false, {}, policy);
    };
    const auto bias = [&](bool there, const char* rest, std::vector<int64_t> parts) {
      const int64_t width = std::accumulate(parts.begin(), parts.end(), int64_t{0});
      return there ? make(layer_name(i, rest), {width}, false, std::move(parts), policy, 0)
                   : nullptr;
    };
    const bool norms = config_.head_norms;
    layers_.push_back({.attn_norm = norm("attn.norm", n),
                       .qkv = matrix("attn.qkv", q + 2 * kv, n, {q, kv, kv}),
                       .out = matrix("attn.out", n, q, {n}),
                       .mlp_norm = norm("mlp.norm", n),
                       .gate_up = matrix("mlp.gate_up", 2 * m, n, {m, m}),
                       .down = matrix("mlp.down", n, m, {n}),
                       .q_norm = norms ? norm("attn.q_norm", d) : nullptr,
                       .k_norm = norms ? norm("attn.k_norm", d) : nullptr,
                       .qkv_bias = bias(config_.qkv_bias, "attn.qkv.bias", {q, kv, kv}),
                       .out_bias = bias(config_.out_bias, "attn.out.bias", {n}),
                       .gate_up_bias = bias(config_.mlp_bias, "mlp.gate_up.bias", {m, m}),
                       .down_bias = bias(config_.mlp_bias, "mlp.down.bias", {n})});
  }
  final_norm_ = make("final.norm", {n}, false, {}, policy);
  if (!config_.tie_word_embeddings)
    head_ = make("head", {config_.vocab_size, n}, false, {}, policy);

  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    add_block(layers_[i], i, policy);
  }
  Part& last = add_part("final", slot_of(policy, "final.input", Role::kInput, n));
  last.add(rms_norm_stage(config_.rms_norm_eps), {final_norm_});
  if (config_.logits_scaling != 1) last.add(scale_stage(1 / config_.logits_scaling));
  last.segment.finish();
  loss_treatment_ =
      LossTreatment::from(policy.slot("loss.logits", Role::kLogits), config_.vocab_size);
  COMPACT_CHECK(policy.slot("final.norm", Role::kHead).storage() == Storage::kKeep,
                "slot `final.norm` can only be `keep`: the "
                "loss reads it (under chunk it is freed in the forward pass)");

  std::vector<NamedRole> slots = segment_slots(), parameters_names;
  slots.push_back({"final.norm", Role::kHead});
  slots.push_back({"loss.logits", Role::kLogits});
  for (const Parameter* p : parameters()) parameters_names.push_back({p->name});
  policy.check_patterns(PolicyKind::kSlot, slots);
  policy.check_patterns(PolicyKind::kGrad, parameters_names);
  policy.check_patterns(PolicyKind::kMoment, parameters_names);
}

const Parameter* Llama::make(const std::string& name, std::vector<int64_t> shape, bool hidden,
                             std::vector<int64_t> parts, const Policy& policy, double of_vectors) {
  Parameter p;
  p.name = name;
  p.hidden = hidden;
  p.decay = shape.size() > 1;
  p.parts = parts.empty() ? std::vector<int64_t>{shape[0]} : std::move(parts);
  const uint64_t key = derive(options_.seed, label_of(name.data(), name.size()));
  p.weight = at::empty(shape, at::TensorOptions().device(options_.device).dtype(options_.dtype));
  if (shape.size() == 1) {
    p.weight.fill_(of_vectors);
  } else {
    draw(p.weight, kernels::Distribution::kNormal, config_.initializer_range, key);
  }
  const Spec grad = policy.grad(name);
  COMPACT_CHECK(grad.name == "full" || hidden, "grad `", name,
                "` can only be `full`: projected gradients are for the matrices of blocks");
  treat_gradient(p, grad, derive(key, 1));
  return &add_parameter(std::move(p));
}

void Llama::add_block(const Layer& l, int64_t i, const Policy& policy) {
  const int64_t n = config_.hidden_size, m = config_.intermediate_size, d = config_.head_dim;
  const int64_t heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const auto slot = [&](const char* rest, Role role, int64_t width) {
    return slot_of(policy, layer_name(i, rest), role, width);
  };
  Part& b = add_part(cat("layers.", i), slot("attn.input", Role::kInput, n));
  const auto linear = [&](const Parameter* weight, const Parameter* bias, Slot output = {}) {
    auto stage = linear_stage(
        {.bias = bias != nullptr, .sketch_width = weight->carrier ? weight->carrier->width() : 0});
    if (bias) {
      b.add(std::move(stage), {weight, bias}, std::move(output));
    } else {
      b.add(std::move(stage), {weight}, std::move(output));
    }
  };
  const auto scale = [&] {
    if (config_.residual_multiplier != 1) b.add(scale_stage(config_.residual_multiplier));
  };
  b.add(rms_norm_stage(config_.rms_norm_eps), {l.attn_norm}, slot("attn.norm", Role::kNorm, n));
  // Turned in place, which its backward pass undoes: before norms of heads, or where nothing is
  // turned, the product is held as it is.
  const Slot qkv = slot("attn.qkv", Role::kQkv, (heads + 2 * kv_heads) * d), none = {};
  const bool turns = config_.turns(i), norms = l.q_norm;
  linear(l.qkv, l.qkv_bias, turns && !norms ? none : qkv);
  const Slot read = norms ? slot("attn.heads", Role::kHeads, qkv.width) : qkv;
  if (norms) {
    b.add(head_norm_stage(config_.rms_norm_eps, heads, kv_heads, d), {l.q_norm, l.k_norm},
          turns ? none : read);
  }
  if (turns) b.add(rope_stage(rope_, heads + kv_heads, d), {}, read);
  b.add(attention_stage(heads, kv_heads, d, config_.attention_multiplier), {},
        slot("attn.out", Role::kAttention, heads * d));
  linear(l.out, l.out_bias);
  scale();
  const int middle = b.segment.add_residual(0, slot("mlp.input", Role::kResidual, n));
  b.add(rms_norm_stage(config_.rms_norm_eps), {l.mlp_norm}, slot("mlp.norm", Role::kNorm, n));
  linear(l.gate_up, l.gate_up_bias, slot("mlp.gate_up", Role::kGateUp, 2 * m));
  b.add(swiglu_stage(m), {}, slot("mlp.product", Role::kProduct, m),
        slot("mlp.silu", Role::kGate, m));
  linear(l.down, l.down_bias);
  scale();
  b.segment.add_residual(middle);
  b.segment.finish();
  for (const Slot& c : b.segment.codec_slots()) {
    COMPACT_CHECK(c.treatment.codec()->bytes(1, c.width, options_.dtype), "slot `", c.name,
                  "` = ", c.treatment.text(),
                  ": what it would take of a transformer's tensor cannot be planned");
  }
}

at::Tensor Llama::embedded(const at::Tensor& ids, const at::Tensor& embedding) const {
  COMPACT_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong,
                "[llama] ids must be int64 [batch, sequence]");
  COMPACT_CHECK(ids.size(1) <= options_.max_length, "[llama] a sequence of ", ids.size(1),
                " tokens is longer than max_length ", options_.max_length);
  trace_moment("forward of ", "embedding");
  // As in Hugging Face a padding token is not trained as a word.
  at::Tensor x = at::embedding(embedding, ids, config_.pad_token_id.value_or(-1));
  return config_.embedding_multiplier == 1 ? x : x * config_.embedding_multiplier;
}

at::Tensor Llama::hidden(const at::Tensor& ids, const at::Tensor& embedding,
                         const SegmentPass& pass, SegmentReport* report) const {
  at::Tensor x = embedded(ids, embedding);
  // A part may reuse the memory of what it is given.
  for (const auto& part : parts()) x = part->run(std::move(x), pass, report);
  return x;
}

at::Tensor Llama::loss(const Tensors& inputs, const at::Tensor& targets, const Pass& pass,
                       PassReport* report) const {
  // Tied, the two gradients are added by a node of ours.
  const auto [embedding, head] =
      head_ ? std::pair(embedding_->weight, head_->weight) : fork(embedding_->weight);
  const at::Tensor x = hidden(inputs.at(0), embedding, pass.of_segments(), report);
  LossReport held;
  const at::Tensor sum = linear_cross_entropy(x, head, targets, pass.scale, loss_treatment_, &held);
  if (!report || !sum.requires_grad()) return sum;
  const int64_t chunk = loss_treatment_.chunk_tokens;
  report->slots.push_back(
      {"final.norm", chunk ? "freed" : "keep", held.hidden, static_cast<int64_t>(x.nbytes())});
  report->slots.push_back({"loss.logits", chunk ? cat("chunk:tokens=", chunk) : "keep", held.logits,
                           inputs[0].numel() * config_.vocab_size * (x.element_size() + 4)});
  report->saved_bytes += held.bytes();
  return sum;
}

Score Llama::score(const Tensors& inputs, const at::Tensor& targets) const {
  const at::NoGradGuard no_grad;
  return {.loss = loss(inputs, targets, {.training = false}).item<double>(),
          .targets = targets.ne(kernels::kIgnoreIndex).sum().item<int64_t>()};
}

at::Tensor Llama::logits(const at::Tensor& ids) const {
  at::NoGradGuard no_grad;
  return at::linear(hidden(ids, embedding_->weight, {}, nullptr), head().weight);
}

std::vector<std::pair<std::string, at::Tensor>> Llama::named_tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  const auto put = [&](const std::string& name, const at::Tensor& t) {
    all.emplace_back(name, t.detach());
  };
  // A matrix, or the parts of one, and their biases.
  const auto put_linear = [&](const std::string& prefix, const Parameter* weight,
                              const Parameter* bias, const std::vector<const char*>& names) {
    int64_t row = 0;
    size_t part = 0;
    for (const char* name : names) {
      const int64_t rows = names.size() == 1 ? weight->weight.size(0) : weight->parts[part++];
      put(prefix + name + ".weight", weight->weight.narrow(0, row, rows));
      if (bias) put(prefix + name + ".bias", bias->weight.narrow(0, row, rows));
      row += rows;
    }
  };
  using Parts = std::vector<const char*>;
  const bool fused = config_.fused_names;
  put("model.embed_tokens.weight", embedding_->weight);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& l = layers_[i];
    const std::string prefix = cat("model.layers.", i, ".");
    put(prefix + "input_layernorm.weight", l.attn_norm->weight);
    put_linear(prefix + "self_attn.", l.qkv, l.qkv_bias,
               fused ? Parts{"qkv_proj"} : Parts{"q_proj", "k_proj", "v_proj"});
    if (l.q_norm) put(prefix + "self_attn.q_norm.weight", l.q_norm->weight);
    if (l.k_norm) put(prefix + "self_attn.k_norm.weight", l.k_norm->weight);
    put_linear(prefix + "self_attn.", l.out, l.out_bias, {"o_proj"});
    put(prefix + "post_attention_layernorm.weight", l.mlp_norm->weight);
    put_linear(prefix + "mlp.", l.gate_up, l.gate_up_bias,
               fused ? Parts{"gate_up_proj"} : Parts{"gate_proj", "up_proj"});
    put_linear(prefix + "mlp.", l.down, l.down_bias, {"down_proj"});
  }
  put("model.norm.weight", final_norm_->weight);
  if (head_) put("lm_head.weight", head_->weight);
  return all;
}

}  // namespace compact
