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
#include "compact/ops/treatments.h"

namespace compact {
namespace {

std::string layer_name(int64_t i, const char* rest) { return cat("layers.", i, ".", rest); }

const char* const kLayerSlots[] = {"attn.input",  "attn.norm", "attn.qkv",
                                   "attn.out",    "mlp.input", "mlp.norm",
                                   "mlp.gate_up", "mlp.silu",  "mlp.product"};

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
    auto layer = std::make_unique<Layer>();
    layer->attn_norm = make(layer_name(i, "attn.norm"), {n}, false, {}, policy);
    layer->qkv = make(layer_name(i, "attn.qkv"), {q + 2 * kv, n}, true, {q, kv, kv}, policy);
    layer->out = make(layer_name(i, "attn.out"), {n, q}, true, {n}, policy);
    layer->mlp_norm = make(layer_name(i, "mlp.norm"), {n}, false, {}, policy);
    layer->gate_up = make(layer_name(i, "mlp.gate_up"), {2 * m, n}, true, {m, m}, policy);
    layer->down = make(layer_name(i, "mlp.down"), {n, m}, true, {n}, policy);
    layers_.push_back(std::move(layer));
  }
  final_norm_ = make("final.norm", {n}, false, {}, policy);
  if (!config_.tie_word_embeddings)
    head_ = make("head", {config_.vocab_size, n}, false, {}, policy);

  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    layers_[i]->segment = block(*layers_[i], i, policy);
  }
  final_ = std::make_unique<Segment>("final", slot_of(policy, "final.input", n));
  final_->add(rms_norm_stage(&final_norm_, config_.rms_norm_eps));
  final_->finish();
  loss_treatment_ = LossTreatment::from(policy.slot("loss.logits"), config_.vocab_size);
  COMPACT_CHECK(policy.slot("final.norm").name == "keep",
                "slot `final.norm` can only be `keep`: the "
                "loss reads it (under chunk it is freed in the forward pass)");

  std::vector<std::string> slots, parameters_names;
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    for (const char* s : kLayerSlots) slots.push_back(layer_name(i, s));
  }
  for (const char* s : {"final.input", "final.norm", "loss.logits"}) slots.emplace_back(s);
  for (const Parameter* p : parameters()) parameters_names.push_back(p->name);
  policy.check_patterns(PolicyKind::kSlot, slots);
  policy.check_patterns(PolicyKind::kGrad, parameters_names);
  policy.check_patterns(PolicyKind::kMoment, parameters_names);
}

Parameter Llama::make(const std::string& name, std::vector<int64_t> shape, bool hidden,
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
  p.lr_scale = lr_scale_of(grad);
  p.release = grad.flag("release", false);
  COMPACT_CHECK(grad.name == "full" || hidden, "grad `", name,
                "` can only be `full`: projected gradients are for the matrices of blocks");
  p.carrier = make_carrier(grad, name, p.weight, p.parts, derive(key, 1));
  if (!p.carrier) p.weight.requires_grad_(true);
  return p;
}

std::unique_ptr<Segment> Llama::block(const Layer& layer, int64_t i, const Policy& policy) const {
  const int64_t n = config_.hidden_size, m = config_.intermediate_size, d = config_.head_dim;
  const int64_t heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const auto slot = [&](const char* rest, int64_t width) {
    return slot_of(policy, layer_name(i, rest), width);
  };
  auto s = std::make_unique<Segment>(cat("layers.", i), slot("attn.input", n));
  s->add(rms_norm_stage(&layer.attn_norm, config_.rms_norm_eps), slot("attn.norm", n));
  s->add(linear_stage(&layer.qkv));
  s->add(rope_stage(rope_, heads + kv_heads, d), slot("attn.qkv", (heads + 2 * kv_heads) * d));
  s->add(attention_stage(heads, kv_heads, d), slot("attn.out", heads * d));
  s->add(linear_stage(&layer.out));
  const int middle = s->add_residual(0, slot("mlp.input", n));
  s->add(rms_norm_stage(&layer.mlp_norm, config_.rms_norm_eps), slot("mlp.norm", n));
  s->add(linear_stage(&layer.gate_up), slot("mlp.gate_up", 2 * m));
  s->add(swiglu_stage(m), slot("mlp.product", m), slot("mlp.silu", m));
  s->add(linear_stage(&layer.down));
  s->add_residual(middle);
  s->finish();
  for (const Slot& c : s->codec_slots()) {
    COMPACT_CHECK(c.codec->bytes(1, c.width, options_.dtype), "slot `", c.name, "` = ", c.treatment,
                  ": what it would take of a transformer's tensor cannot be planned");
  }
  return s;
}

at::Tensor Llama::hidden(const at::Tensor& ids, const at::Tensor& embedding) const {
  COMPACT_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong,
                "[llama] ids must be int64 [batch, sequence]");
  COMPACT_CHECK(ids.size(1) <= options_.max_length, "[llama] a sequence of ", ids.size(1),
                " tokens is longer than max_length ", options_.max_length);
  trace_moment("forward of ", "embedding");
  at::Tensor x = at::embedding(embedding, ids);
  for (const auto& layer : layers_) x = (*layer->segment)(x);
  return (*final_)(x);
}

std::vector<Segment*> Llama::segments() const {
  std::vector<Segment*> all;
  for (const auto& layer : layers_) all.push_back(layer->segment.get());
  all.push_back(final_.get());
  return all;
}

std::vector<CodecTensor> Llama::codec_tensors(const Tensors& inputs) const {
  std::vector<CodecTensor> all;
  for (const Segment* s : segments()) {
    for (const Slot& slot : s->codec_slots()) {
      all.push_back({slot.name, slot.treatment, slot.width * inputs.at(0).numel(), options_.dtype});
    }
  }
  return all;
}

void Llama::set_codecs(const Policy& policy) {
  for (Segment* s : segments()) s->set_codecs(policy);
}

void Llama::set_noise(uint64_t key) const {
  for (const Segment* s : segments()) s->set_noise(key);
}

at::Tensor Llama::loss(const at::Tensor& ids, const at::Tensor& targets, double scale) const {
  tokens_ = ids.numel();
  const bool tied = config_.tie_word_embeddings;
  const auto [embedding, view] =
      tied ? fork(embedding_.weight) : std::pair(embedding_.weight, at::Tensor());
  return linear_cross_entropy(hidden(ids, embedding), head(), targets, scale, loss_treatment_,
                              &loss_report_, view);
}

Score Llama::score(const Tensors& inputs, const at::Tensor& targets) const {
  const at::NoGradGuard no_grad;
  return {.loss = loss(inputs, targets, 1).item<double>(),
          .targets = targets.ne(kernels::kIgnoreIndex).sum().item<int64_t>()};
}

at::Tensor Llama::logits(const at::Tensor& ids) const {
  at::NoGradGuard no_grad;
  return at::linear(hidden(ids, embedding_.weight), head().weight);
}

std::vector<Parameter*> Llama::parameters() const {
  std::vector<Parameter*> all = {trainable(embedding_)};
  for (const auto& l : layers_) {
    for (const Parameter* p :
         {&l->attn_norm, &l->qkv, &l->out, &l->mlp_norm, &l->gate_up, &l->down}) {
      all.push_back(trainable(*p));
    }
  }
  all.push_back(trainable(final_norm_));
  if (!config_.tie_word_embeddings) all.push_back(trainable(head_));
  return all;
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
  put("model.embed_tokens.weight", embedding_.weight);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& l = *layers_[i];
    const std::string prefix = cat("model.layers.", i, ".");
    put(prefix + "input_layernorm.weight", l.attn_norm.weight);
    put_parts(prefix + "self_attn.", l.qkv, {"q_proj", "k_proj", "v_proj"});
    put(prefix + "self_attn.o_proj.weight", l.out.weight);
    put(prefix + "post_attention_layernorm.weight", l.mlp_norm.weight);
    put_parts(prefix + "mlp.", l.gate_up, {"gate_proj", "up_proj"});
    put(prefix + "mlp.down_proj.weight", l.down.weight);
  }
  put("model.norm.weight", final_norm_.weight);
  if (!config_.tie_word_embeddings) put("lm_head.weight", head_.weight);
  return all;
}

std::vector<SlotBytes> Llama::bytes(int64_t tokens) const {
  const auto size = static_cast<int64_t>(c10::elementSize(options_.dtype));
  std::vector<SlotBytes> all;
  for (const auto& l : layers_) {
    for (SlotBytes& b : l->segment->bytes(tokens, size)) all.push_back(std::move(b));
  }
  for (SlotBytes& b : final_->bytes(tokens, size)) all.push_back(std::move(b));
  const bool chunked = loss_treatment_.chunk_tokens > 0;
  const int64_t norm = tokens * config_.hidden_size * size;
  all.push_back({"final.norm", chunked ? "freed" : "keep", chunked ? 0 : norm, norm});
  all.push_back({"loss.logits",
                 chunked ? cat("chunk:tokens=", loss_treatment_.chunk_tokens) : "keep",
                 loss_bytes(loss_treatment_, tokens, config_.hidden_size, config_.vocab_size, size),
                 loss_bytes({0}, tokens, config_.hidden_size, config_.vocab_size, size)});
  return all;
}

int64_t Llama::saved_bytes() const {
  int64_t bytes = loss_report_.saved_bytes;
  for (const Segment* s : segments()) bytes += s->saved_bytes();
  return bytes;
}

int64_t Llama::recomputed() const {
  int64_t count = 0;
  for (const Segment* s : segments()) count += s->recomputed();
  return count;
}

}  // namespace compact
