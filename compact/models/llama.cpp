// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/draw.h"
#include "compact/kernels/kernels.h"
#include "compact/ops/fork.h"
#include "compact/ops/memory_trace.h"

namespace compact {
namespace {

std::string layer_name(int64_t i, const char* rest) { return cat("layers.", i, ".", rest); }

}  // namespace

Llama::Llama(const LlamaConfig& config, const Policy& policy, const ModelOptions& options)
    : config_(config), options_(options) {
  check_llama_config(config_, "model");
  const int64_t n = config_.hidden_size, m = config_.intermediate_size, d = config_.head_dim;
  const int64_t q = config_.num_attention_heads * d, kv = config_.num_key_value_heads * d;
  rope_ = std::make_shared<RopeTables>(
      RopeTables::make(options_.max_length, d, config_.rope_theta, options_.device));
  embedding_ = make("embedding", {config_.vocab_size, n}, false, {}, policy);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const auto matrix = [&](const char* rest, int64_t out, int64_t in, std::vector<int64_t> parts) {
      return make(layer_name(i, rest), {out, in}, true, std::move(parts), policy);
    };
    const auto norm = [&](const char* rest) {
      return make(layer_name(i, rest), {n}, false, {}, policy);
    };
    layers_.push_back({.attn_norm = norm("attn.norm"),
                       .qkv = matrix("attn.qkv", q + 2 * kv, n, {q, kv, kv}),
                       .out = matrix("attn.out", n, q, {n}),
                       .mlp_norm = norm("mlp.norm"),
                       .gate_up = matrix("mlp.gate_up", 2 * m, n, {m, m}),
                       .down = matrix("mlp.down", n, m, {n})});
  }
  final_norm_ = make("final.norm", {n}, false, {}, policy);
  if (!config_.tie_word_embeddings)
    head_ = make("head", {config_.vocab_size, n}, false, {}, policy);

  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    add_block(layers_[i], i, policy);
  }
  Part& last = add_part("final", slot_of(policy, "final.input", Role::kInput, n));
  last.add(rms_norm_stage(config_.rms_norm_eps), {final_norm_});
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
                             std::vector<int64_t> parts, const Policy& policy) {
  Parameter p;
  p.name = name;
  p.hidden = hidden;
  p.decay = shape.size() > 1;
  p.parts = parts.empty() ? std::vector<int64_t>{shape[0]} : std::move(parts);
  const uint64_t key = derive(options_.seed, label_of(name.data(), name.size()));
  p.weight = at::empty(shape, at::TensorOptions().device(options_.device).dtype(options_.dtype));
  if (shape.size() == 1) {
    p.weight.fill_(1);
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
  const auto linear = [](const Parameter* p) {
    return linear_stage({.sketch_width = p->carrier ? p->carrier->width() : 0});
  };
  Part& b = add_part(cat("layers.", i), slot("attn.input", Role::kInput, n));
  b.add(rms_norm_stage(config_.rms_norm_eps), {l.attn_norm}, slot("attn.norm", Role::kNorm, n));
  b.add(linear(l.qkv), {l.qkv});
  b.add(rope_stage(rope_, heads + kv_heads, d), {},
        slot("attn.qkv", Role::kQkv, (heads + 2 * kv_heads) * d));
  b.add(attention_stage(heads, kv_heads, d), {}, slot("attn.out", Role::kAttention, heads * d));
  b.add(linear(l.out), {l.out});
  const int middle = b.segment.add_residual(0, slot("mlp.input", Role::kResidual, n));
  b.add(rms_norm_stage(config_.rms_norm_eps), {l.mlp_norm}, slot("mlp.norm", Role::kNorm, n));
  b.add(linear(l.gate_up), {l.gate_up}, slot("mlp.gate_up", Role::kGateUp, 2 * m));
  b.add(swiglu_stage(m), {}, slot("mlp.product", Role::kProduct, m),
        slot("mlp.silu", Role::kGate, m));
  b.add(linear(l.down), {l.down});
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
  return at::embedding(embedding, ids);
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
  const auto put_parts = [&](const std::string& prefix, const Parameter& p,
                             std::initializer_list<const char*> names) {
    int64_t row = 0;
    size_t part = 0;
    for (const char* name : names) {
      put(prefix + name + ".weight", p.weight.narrow(0, row, p.parts[part]));
      row += p.parts[part++];
    }
  };
  put("model.embed_tokens.weight", embedding_->weight);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& l = layers_[i];
    const std::string prefix = cat("model.layers.", i, ".");
    put(prefix + "input_layernorm.weight", l.attn_norm->weight);
    put_parts(prefix + "self_attn.", *l.qkv, {"q_proj", "k_proj", "v_proj"});
    put(prefix + "self_attn.o_proj.weight", l.out->weight);
    put(prefix + "post_attention_layernorm.weight", l.mlp_norm->weight);
    put_parts(prefix + "mlp.", *l.gate_up, {"gate_proj", "up_proj"});
    put(prefix + "mlp.down_proj.weight", l.down->weight);
  }
  put("model.norm.weight", final_norm_->weight);
  if (head_) put("lm_head.weight", head_->weight);
  return all;
}

}  // namespace compact
