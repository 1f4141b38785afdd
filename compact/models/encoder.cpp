// SPDX-License-Identifier: Apache-2.0
#include "compact/models/encoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "compact/base/check.h"
#include "compact/ops/memory_trace.h"
#include "compact/ops/stages.h"
#include "compact/ops/treatments.h"

namespace compact {
namespace {

std::string in_layer(int64_t i, const char* rest) { return cat("layers.", i, ".", rest); }

// Tokens are counted from pad + 1 on; one that is padding, also within a text, is not counted and
// lies at pad.
at::Tensor roberta_positions(const at::Tensor& ids, int64_t pad) {
  const at::Tensor counted = ids.ne(pad);
  return counted.cumsum(1).mul_(counted).add_(pad);
}

}  // namespace

Encoder::Encoder(const EncoderConfig& config, const Policy& policy,
                 const ClassifierOptions& options)
    : Classifier(policy, options), config_(config) {
  check_encoder_config(config_, "model");
  const int64_t n = config_.hidden_size, m = config_.intermediate_size;
  embedding_ = table("embedding", config_.vocab_size);
  positions_ = table("positions", config_.max_position_embeddings);
  types_ = table("types", config_.type_vocab_size);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    auto layer = std::make_unique<Layer>();
    layer->attn_norm = norm(in_layer(i, "attn.norm"));
    layer->qkv = linear(in_layer(i, "attn.qkv"), 3 * n, n, true, 3);
    layer->out = linear(in_layer(i, "attn.out"), n, n, true);
    layer->mlp_norm = norm(in_layer(i, "mlp.norm"));
    layer->up = linear(in_layer(i, "mlp.up"), m, n, true);
    layer->down = linear(in_layer(i, "mlp.down"), n, m, true);
    layers_.push_back(std::move(layer));
  }
  final_norm_ = norm("final.norm");
  pooler_ = linear("pooler", n, n, false);
  head_ = linear("head", config_.outputs(), n, false);
  finish();
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    layers_[i]->segment = block(*layers_[i], i, policy);
  }
  final_ = std::make_unique<Segment>("final", slot_of(policy, "final.input", n));
  final_->add(layer_norm_stage(&final_norm_.weight, &final_norm_.bias, config_.layer_norm_eps));
  final_->finish();
}

Parameter Encoder::table(const std::string& name, int64_t rows) {
  const double deviation = config_.initializer_range;
  Parameter p = parameter(name, normal(name, {rows, config_.hidden_size}, deviation * deviation));
  return p;
}

Encoder::Affine Encoder::linear(const std::string& name, int64_t out, int64_t in, bool hidden,
                                int64_t parts) {
  const double deviation = config_.initializer_range;
  Affine a{parameter(name, normal(name, {out, in}, deviation * deviation)),
           parameter(name + ".bias", at::zeros({out}, tensor_options()))};
  a.weight.hidden = hidden;
  a.weight.parts.assign(parts, out / parts);
  return a;
}

// In f32 whatever the type of activations.
Encoder::Affine Encoder::norm(const std::string& name) {
  const auto f32 = tensor_options().dtype(at::kFloat);
  return {parameter(name, at::ones({config_.hidden_size}, f32)),
          parameter(name + ".bias", at::zeros({config_.hidden_size}, f32))};
}

std::unique_ptr<Segment> Encoder::block(const Layer& l, int64_t i, const Policy& policy) const {
  const int64_t n = config_.hidden_size, m = config_.intermediate_size,
                heads = config_.num_attention_heads;
  const auto slot = [&](const char* rest, int64_t width) {
    return slot_of(policy, in_layer(i, rest), width);
  };
  const auto drop = [&](Segment& s, Slot output = {}) {
    if (config_.hidden_dropout > 0)
      s.add(dropout_stage(config_.hidden_dropout, n), std::move(output));
  };
  auto s = std::make_unique<Segment>(cat("layers.", i), slot("attn.input", n));
  const auto first =
      layer_norm_stage(&l.attn_norm.weight, &l.attn_norm.bias, config_.layer_norm_eps);
  if (i == 0 && config_.hidden_dropout > 0) {
    s->add(first);
    drop(*s, slot("attn.norm", n));
  } else {
    s->add(first, slot("attn.norm", n));
  }
  const int normed = s->tensors() - 1;
  s->add(linear_stage(&l.qkv.weight, &l.qkv.bias), slot("attn.qkv", 3 * n));
  s->add(masked_attention_stage(heads, n / heads, config_.attention_dropout), slot("attn.out", n));
  s->add(linear_stage(&l.out.weight, &l.out.bias));
  drop(*s);
  s->add_residual(normed, slot("mlp.input", n));
  const int middle =
      s->add(layer_norm_stage(&l.mlp_norm.weight, &l.mlp_norm.bias, config_.layer_norm_eps),
             slot("mlp.norm", n));
  s->add(linear_stage(&l.up.weight, &l.up.bias), slot("mlp.up", m));
  s->add(gelu_stage(m, config_.gelu_tanh), slot("mlp.gelu", m));
  s->add(linear_stage(&l.down.weight, &l.down.bias));
  drop(*s);
  s->add_residual(middle);
  s->finish();
  return s;
}

at::Tensor Encoder::embedded(const Tensors& inputs) const {
  COMPACT_CHECK(inputs.size() == 3, "[encoder] needs ids, token types and lengths");
  const at::Tensor &ids = inputs[0], &types = inputs[1];
  COMPACT_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong && types.sizes() == ids.sizes(),
                "[encoder] ids and token types must be int64 [batch, sequence]");
  COMPACT_CHECK(ids.size(1) <= config_.max_length(), "[encoder] a sequence of ", ids.size(1),
                " tokens is longer than the model's ", config_.max_length());
  trace_moment("forward of ", "embedding");
  const int64_t pad = config_.pad_token_id;
  // As in Hugging Face a padding token is trained neither as a word nor, in RoBERTa, as a place.
  at::Tensor x = at::embedding(embedding_.weight, ids, pad);
  if (config_.kind == EncoderKind::kRoberta) {
    x.add_(at::embedding(positions_.weight, roberta_positions(ids, pad), pad));
  } else {
    x.add_(positions_.weight.narrow(0, 0, ids.size(1)));
  }
  return x.add_(at::embedding(types_.weight, types));
}

at::Tensor Encoder::head_of(const at::Tensor& first, bool training) const {
  const double given = config_.classifier_dropout, p = !training   ? 0
                                                       : given < 0 ? config_.hidden_dropout
                                                                   : given;
  // RoBERTa has the first dropout, BERT has not.
  at::Tensor x = config_.kind == EncoderKind::kRoberta ? dropout(first, p) : first;
  x = dropout(at::tanh(at::linear(x, pooler_.weight.weight, pooler_.bias.weight)), p);
  return at::linear(x, head_.weight.weight, head_.bias.weight);
}

at::Tensor Encoder::logits(const Tensors& inputs, bool training) const {
  at::Tensor x = embedded(inputs);
  for (const Segment* s : segments()) s->set_training(training);
  for (const auto& l : layers_) x = (*l->segment)(std::move(x), inputs[2]);
  return head_of((*final_)(x.select(1, 0)), training);
}

void Encoder::each_segment(const Tensors& inputs, SeeSegment see) const {
  const at::NoGradGuard no_grad;
  at::Tensor x = embedded(inputs);
  for (const auto& l : layers_) {
    see(*l->segment, x);
    x = (*l->segment)(x, inputs[2]);
  }
  see(*final_, x.select(1, 0));
}

std::vector<Segment*> Encoder::segments() const {
  std::vector<Segment*> all;
  for (const auto& l : layers_) all.push_back(l->segment.get());
  all.push_back(final_.get());
  return all;
}

std::vector<Parameter*> Encoder::parameters() const {
  std::vector<Parameter*> all = {trainable(embedding_), trainable(positions_), trainable(types_)};
  const auto add = [&](const Affine& a) {
    all.push_back(trainable(a.weight));
    all.push_back(trainable(a.bias));
  };
  for (const auto& l : layers_) {
    for (const Affine* a : {&l->attn_norm, &l->qkv, &l->out, &l->mlp_norm, &l->up, &l->down}) {
      add(*a);
    }
  }
  for (const Affine* a : {&final_norm_, &pooler_, &head_}) add(*a);
  return all;
}

std::string Encoder::prefix() const {
  return config_.kind == EncoderKind::kBert ? "bert." : "roberta.";
}

std::vector<std::pair<std::string, at::Tensor>> Encoder::named_tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  const std::string base = prefix();
  const auto put = [&](const std::string& name, const Affine& a) {
    all.emplace_back(name + ".weight", a.weight.weight.detach());
    all.emplace_back(name + ".bias", a.bias.weight.detach());
  };
  const auto put_table = [&](const char* name, const Parameter& p) {
    all.emplace_back(cat(base, "embeddings.", name, "_embeddings.weight"), p.weight.detach());
  };
  put_table("word", embedding_);
  put_table("position", positions_);
  put_table("token_type", types_);
  put(base + "embeddings.LayerNorm", layers_[0]->attn_norm);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& l = *layers_[i];
    const std::string name = cat(base, "encoder.layer.", i, ".");
    int64_t row = 0;
    for (const char* part : {"query", "key", "value"}) {
      const int64_t rows = config_.hidden_size;
      const std::string to = name + "attention.self." + part;
      all.emplace_back(to + ".weight", l.qkv.weight.weight.detach().narrow(0, row, rows));
      all.emplace_back(to + ".bias", l.qkv.bias.weight.detach().narrow(0, row, rows));
      row += rows;
    }
    put(name + "attention.output.dense", l.out);
    put(name + "attention.output.LayerNorm", l.mlp_norm);
    put(name + "intermediate.dense", l.up);
    put(name + "output.dense", l.down);
    put(name + "output.LayerNorm",
        i + 1 < layers_.size() ? layers_[i + 1]->attn_norm : final_norm_);
  }
  const bool bert = config_.kind == EncoderKind::kBert;
  put(bert ? base + "pooler.dense" : "classifier.dense", pooler_);
  put(bert ? "classifier" : "classifier.out_proj", head_);
  return all;
}

// Of a model without a head the prefix is missing; norms were named gamma and beta once.
Network::Names Encoder::other_names(const std::string& name) const {
  Names names;
  const std::string base = prefix();
  if (name.starts_with(base)) names.push_back(name.substr(base.size()));
  const size_t at = name.find("LayerNorm.");
  if (at == name.npos) return names;
  names.insert(names.begin(), name);
  const size_t count = names.size();
  for (size_t i = 0; i < count; ++i) {
    const bool weight = names[i].ends_with("weight");
    names.push_back(names[i].substr(0, names[i].rfind('.')) + (weight ? ".gamma" : ".beta"));
  }
  return names;
}

bool Encoder::may_be_new(const std::string& name) const {
  return name.starts_with("classifier") || name.starts_with(prefix() + "pooler.");
}

}  // namespace compact
